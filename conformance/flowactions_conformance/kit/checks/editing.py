"""Checks of the group EDITING."""
