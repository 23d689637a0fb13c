"""Tells what came of a run: on the terminal, as JSON, as a page and as a badge."""
