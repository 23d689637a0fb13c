"""Checks of the group EDIT."""
