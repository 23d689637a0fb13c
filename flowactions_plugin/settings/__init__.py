"""A host's settings: read, checked, and never shown with their values."""
