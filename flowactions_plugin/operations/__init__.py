"""What operators and tenants do to deliveries: one port, whoever asks and by what."""
