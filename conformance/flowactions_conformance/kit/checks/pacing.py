"""Checks of the group PACING."""
