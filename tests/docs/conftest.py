from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that the processes of a test run share, for environments that pip makes once a run."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "environments"
