"""Checks of the group LOOPS."""
