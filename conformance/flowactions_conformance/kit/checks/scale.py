"""Checks of the group SCALE."""
