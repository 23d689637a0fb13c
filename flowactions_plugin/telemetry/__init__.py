"""What is measured, traced and logged, by OpenTelemetry's API. Nothing leaves until the host configures its SDK."""
