"""What operators, tenants and programs read: one port, whoever asks and by what."""
