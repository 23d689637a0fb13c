"""A host whose flows SpiffWorkflow runs."""
