"""The durable outbox: webhooks are written down first, then delivered, signed and retried."""
