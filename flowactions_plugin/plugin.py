"""What a host sees: the hook implementations, and nothing else."""
