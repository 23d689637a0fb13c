"""Checks of the group DURABILITY."""
