"""A host author's project that does everything its own way, as files."""

HOST = '''
"""A host in one file."""

from contextlib import asynccontextmanager

from flowactions_conformance.reference_host import create_app
from flowactions_conformance.reference_host.testing import ReferenceDriver


class Shop(ReferenceDriver):
    claims = frozenset({"pacing"})


@asynccontextmanager
async def make_host(env):
    import warnings

    warnings.warn("this host uses something old", DeprecationWarning, stacklevel=1)
    yield Shop(create_app(env.settings, env.state_dir / "shop.db"), env)
'''

CHECK_HOST = """
import asyncio
from pathlib import Path

from shop import make_host

from flowactions_conformance import conformance_suite

TestHost = conformance_suite(
    make_host, checks=["LOAD-1", "EAGER-2", "PACING-4", "TENANCY-1"], report=Path("out")
)


async def verify_that_asyncio_is_on():
    await asyncio.sleep(0)
"""

CONFTEST = '''
import asyncio
import warnings

import pytest


class OnlyMine(asyncio.DefaultEventLoopPolicy):
    """As projects have that test their own loop: any other thread's loop is refused."""

    def new_event_loop(self):
        import threading

        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("no loop in a thread")
        return super().new_event_loop()


@pytest.fixture(autouse=True)
def own_policy():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        before = asyncio.get_event_loop_policy()
        asyncio.set_event_loop_policy(OnlyMine())
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asyncio.set_event_loop_policy(before)


@pytest.fixture(autouse=True)
async def async_for_all():
    yield
'''

INI = """
[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
filterwarnings = error
python_files = check_*.py
python_classes = Verify*
python_functions = verify_*
addopts = --strict-markers --strict-config -ra
"""

FILES = {"shop.py": HOST, "check_host.py": CHECK_HOST, "conftest.py": CONFTEST, "pytest.ini": INI}
