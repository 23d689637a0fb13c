"""What each process writes of its own work: that it is alive, and what it has counted."""
