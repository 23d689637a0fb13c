"""What operators do to many deliveries at once: bulk actions, pauses of destinations, purges of organizations."""
