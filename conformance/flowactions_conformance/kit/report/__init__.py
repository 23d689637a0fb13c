"""Reports the result of a run: on the terminal, and as JSON."""
