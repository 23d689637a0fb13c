"""Health of this process, for whoever starts, stops and balances processes."""
