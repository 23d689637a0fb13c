"""Requests to receivers: where they may go, how they are signed and sent. Usable without the outbox."""
