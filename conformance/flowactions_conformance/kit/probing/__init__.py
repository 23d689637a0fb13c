"""The probe: a plugin that reports what reaches it, and where it reports."""
