"""Checks of the group AUTH."""
