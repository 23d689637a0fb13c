"""Checks of the group HALT."""
