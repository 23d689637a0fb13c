"""Checks of the group TENANCY."""
