"""Chat messages and durable, signed webhooks for any flow-engine host."""
