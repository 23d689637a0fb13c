"""Alerts: what operators should know, sent as signed webhooks through the outbox (decision 65)."""
