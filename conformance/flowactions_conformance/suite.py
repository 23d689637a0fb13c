"""The checks, for pytest: ``pytest -p flowactions_conformance.pytest_plugin --pyargs flowactions_conformance.suite``.

With ``--flowactions-host package.module:make_host``. The plugin collects the checks from this file; it holds none.
"""
