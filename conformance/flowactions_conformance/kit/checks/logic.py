"""Checks of the group LOGIC."""
