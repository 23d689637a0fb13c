"""Checks of the group INBOUND."""
