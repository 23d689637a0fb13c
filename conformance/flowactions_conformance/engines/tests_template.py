"""The conformance kit's checks of my host, as tests: ``python -m pytest``."""

from flowactions_conformance import conformance_suite
from flowactions_conformance.commands.host_template import make_host

TestHost = conformance_suite(make_host)
