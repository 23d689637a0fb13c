"""Healthy hosts, which the kit must not blame; each module has a ``make_host``."""
