"""Broken hosts, as data: what each breaks, which checks must find it, and which must not blame it."""
