"""Inbound events of the auth provider: organizations, users and sessions (§4.4)."""
