"""Signed requests from other services: what they share, and the auth provider's events."""
