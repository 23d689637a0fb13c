"""Checks of the group TASK."""
