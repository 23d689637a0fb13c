"""Checks of the group HTTP."""
