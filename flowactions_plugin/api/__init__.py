"""The JSON routes of the outbox."""
