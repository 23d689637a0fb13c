"""The queue: webhooks are written down first, then claimed, sent, signed and retried."""
