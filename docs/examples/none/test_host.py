"""The conformance kit's checks of my host, as tests: ``python -m pytest``."""

from flowactions_testing import make_host

from flowactions_conformance import conformance_suite

TestHost = conformance_suite(make_host)
