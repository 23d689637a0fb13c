"""Metrics and traces by OpenTelemetry's API, and log events. Nothing is exported until the host configures the SDK."""
