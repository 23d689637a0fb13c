"""A flow engine: loops, branches and sub-flows, below ``/api``, a dashboard with cookies, tenants with equal ids."""
