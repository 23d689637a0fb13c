"""Signed requests from other services (§5.4): what they share, and the auth provider's events (§4.4)."""
