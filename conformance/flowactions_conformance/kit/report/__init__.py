"""Reports the result of a run: on the terminal, as JSON and as a page."""
