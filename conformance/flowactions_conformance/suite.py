"""The checks, for pytest: ``pytest -p flowactions_conformance.pytest_plugin --pyargs flowactions_conformance.suite``.

With ``--flowactions-host package.module:make_host``.
"""

from flowactions_conformance.pytest_plugin import named_suite

TestHost = named_suite()
