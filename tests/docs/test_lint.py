"""What the rules of ``python -m tests.docs.lint`` have to find is found."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

from tests.docs.agreement import BY_NAME, exists, unknown_in
from tests.docs.blocks import is_run
from tests.docs.checking import BY_LANGUAGE, Wrong, check_mention
from tests.docs.code import BOUND, asks_which_database, writers
from tests.docs.environments import INSTALL
from tests.docs.fences import Block
from tests.docs.module_state import changed_in, is_constant
from tests.docs.readers import ACTIVATE, faults, installed


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("sh", "flowactions outbox list --statsu dead"),
        ("sh", "flowactions keygen > key | nobody"),
        ("sh", "FLOWACTIONS_DELIVERYY=continuous flowactions doctor"),
        ("sh", "FLOWACTIONS_DELIVERY=continuous"),
        ("sh", "python -m flowactions_conformance receiver --prot 1"),
        ("sh", "python -m tests.nowhere"),
        ("sh", "curl -X POST https://example.com/v1/webhooks/outbox"),
        ("sh", "if true"),
        ("console", "$ flowactions keygen --sign"),
        ("json", "{"),
        ("toml", "a ="),
        ("yaml", "a: [b"),
        ("http", "nothing"),
    ],
)
def test_a_block_that_cannot_be_right_is_found(language: str, text: str) -> None:
    """Wrong commands, options, settings, modules, syntax; and what nothing checks. What is only named may lack its arguments."""
    block = Block("page.md", 1, language, (), f"{text}\n")
    with pytest.raises(Wrong):
        BY_LANGUAGE[language](block)
    assert not is_run(Block("docs/how-to/operate.md", 1, "python", (), ""))
    assert BY_LANGUAGE.keys().isdisjoint({"python", "rust"})
    check_mention("flowactions outbox show")
    for code in ("flowactions outbox list --statsu", "FLOWACTIONS_TICK=1"):
        with pytest.raises(Wrong):
            check_mention(code)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("```sh\n.venv/bin/flowactions doctor\n```\n", "it uses .venv"),
        ("```sh\nflowactions doctor\n```\n", "in which environment ['flowactions']"),
        (f"```sh\npython3 -m venv .venv\n{INSTALL}\npython -m flowactions_conformance init\n```\n", "in which"),
        (f"{ACTIVATE}\n```sh\npytest\n```\n", "it needs pytest"),
        ("```python\nimport fastapi\n```\n", "it imports fastapi"),
        ("```python\nfrom shop import make_host\n```\n", "it imports shop"),
        ("```python\nasync with lifespan():\n    pass\n```\n", "belongs in a coroutine"),
    ],
)
def test_where_a_reader_stops_is_found(text: str, fault: str, tmp_path: Path) -> None:
    """A missing environment, package, module of the reader's, or coroutine; metadata say what a package needs in turn."""
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n{text}")
    (found,) = faults(page)
    assert fault in found
    both = installed(f"`{INSTALL}`\n`pip install --quiet fastapi`")
    assert {"litestar", "click", "uvicorn", "fastapi", "starlette"} <= both
    assert "uvicorn" not in installed("`pip install flowactions-plugin`")
    assert "not-here" in installed("`pip install not-here`")


def test_names_and_commands_that_are_not_there_are_found() -> None:
    """A method from one that is not there; a word of a command; an install by the name alone."""
    assert exists("flowactions_hookspecs.core.FlowActions.reach") or exists(
        "flowactions_hookspecs.FlowActions.reach"
    )
    assert not exists("flowactions_hookspecs.FlowActions.nowhere")
    assert not exists("nodes.nowhere")
    assert unknown_in("flowactions outbox actions --stop x") == "actions"
    assert unknown_in("outbox list --where since:2h --from 2h") == "--from"
    assert BY_NAME.search("pip install --quiet 'flowactions-plugin[conformance]'")
    assert BY_NAME.search("pip install flowactions-plugin")


def test_rules_of_the_code_find_what_breaks_them() -> None:
    """Who asks for a database, who begins a transaction, and who waits too little."""
    for code in (
        "database.dialect != name",
        "{'sqlite': 8.0, 'postgresql': 3.0}[name]",
        "from sqlalchemy.dialects import postgresql",
        "from flowactions_plugin.storage.sqlite import SQLite",
    ):
        assert asks_which_database(ast.parse(code))
    assert not asks_which_database(ast.parse("from flowactions_plugin.storage.sqlite import Deadline"))
    source = "class A:\n    async def f(self):\n        async with self._database.write() as w: pass\n"
    assert [name for name, _ in writers(ast.parse(source))] == ["A.f"]
    assert BOUND.findall("process.wait(" + "30)") == ["30"]


@pytest.mark.parametrize(
    "code",
    [
        "_BUFFER = memoryview(bytearray(16))",
        "_CACHE = weakref.WeakValueDictionary()",
        "_COUNT = itertools.count()",
        "_CURRENT = contextvars.ContextVar('x')",
        "_LOCAL = threading.local()",
        "@functools.lru_cache\ndef _CACHED(secret): return secret",
        "class C:\n    pass\n_C = C()",
    ],
)
def test_what_a_module_keeps_and_changes_is_found(code: str) -> None:
    """Lint finds buffers, caches, counters and other objects by what they are; also entries, changing calls and rebound names."""
    imported = ("contextvars", "functools", "itertools", "threading", "weakref")
    names = {"__name__": "sample", **{each: importlib.import_module(each) for each in imported}}
    exec(code, names)  # noqa: S102  the cases above
    (value,) = [value for name, value in names.items() if name[0] == "_" and name[1] != "_"]
    assert not is_constant(value)
    for change in ("X = {}\ndef f(): X[1] = 2", "X = []\ndef f(): X.append(1)", "def f():\n    global X"):
        assert changed_in(ast.parse(change)) == {"X"}
