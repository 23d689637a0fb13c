"""A small, real flow-engine host: the example that host authors read.

Read `app` first (how the plugin is mounted), then `host` (what the plugin asks of a host) and `walker` (where a
flow walk calls the plugin). The rest is what any flow engine has of its own.
"""

from flowactions_conformance.reference_host.app import ReferenceApp, create_app
from flowactions_conformance.reference_host.host import ReferenceHost
from flowactions_conformance.reference_host.sample import Sample

__all__ = ["ReferenceApp", "ReferenceHost", "Sample", "create_app"]
