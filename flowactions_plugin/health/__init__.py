"""How deliveries, workers and this process stand: the fleet, statistics, the verdict, readiness."""
