"""Rules that are seen in the code alone. A part of ``python -m tests.docs.lint``.

Each function gives what is wrong, as sentences.
"""

from __future__ import annotations

import ast
import importlib
import re
import types
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from importlib import metadata
from typing import Final

import grimp

from flowactions_plugin.egress.attempt import PROBE
from flowactions_plugin.loggers import NAMES
from flowactions_plugin.operators.scope import AUTOMATIC
from flowactions_plugin.queue.claimed import COLUMNS, SMALL_BYTES
from flowactions_plugin.queue.claims import PREFIX_DIGITS
from flowactions_plugin.queue.lanes import EVER, MOST_OF_A_LANE
from flowactions_plugin.queue.outcomes import MAY_BE_SENT
from flowactions_plugin.queue.probes import AT_ONCE
from flowactions_plugin.queue.statements import FOLDER
from flowactions_plugin.storage.schema import BEHIND_MS, QUARANTINE_AFTER
from tests.docs.fences import ROOT

PLUGIN: Final = ROOT / "flowactions_plugin"
PACKAGES: Final = ("flowactions_hookspecs", "flowactions_plugin", "flowactions_conformance")
SOURCES: Final = {path: path.read_text() for path in sorted(PLUGIN.rglob("*.py"))}
TREES: Final = {path: ast.parse(source) for path, source in SOURCES.items()}


def of_imports() -> Iterator[str]:
    """No modules import each other in a circle, not even within a function; nor do the rooms of the contract and the plugin.

    There, what only type checkers read counts, too. The layers are in pyproject.toml.
    """
    for package in PACKAGES:
        is_kit = package == "flowactions_conformance"
        graph = grimp.build_graph(package, exclude_type_checking_imports=is_kit, cache_dir=None)
        if not is_kit:
            breakers = graph.nominate_cycle_breakers(package)
            yield from (
                f"{importer} imports {imported} in a circle of rooms" for importer, imported in breakers
            )
        imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
        try:
            TopologicalSorter(imports).prepare()
        except CycleError as exc:
            yield f"modules that import each other: {exc.args[1]}"


def asks_which_database(tree: ast.AST) -> set[str]:
    """Give the code of a module by which it can know which of the two databases it has."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant):
            asks = node.value in {"sqlite", "postgresql"}
        elif isinstance(node, ast.Compare):
            asks = "dialect" in ast.unparse(node)
        else:
            asks = isinstance(node, ast.ImportFrom) and (
                node.module == "sqlalchemy.dialects"
                or bool({"SQLite", "PostgreSQL"} & {alias.name for alias in node.names})
            )
        found |= {ast.unparse(node)} if asks else set()
    return found


def of_databases() -> Iterator[str]:
    """Only storage asks which database it is: what they do differently is a method or a property of the dialect."""
    for path, tree in TREES.items():
        if path.relative_to(PLUGIN).parts[0] != "storage":
            yield from (f"{path.name} asks which database it is: {each}" for each in asks_which_database(tree))


def of_exports() -> Iterator[str]:
    """``__all__`` names exactly what a package exports; errors say what their docstring says; hosts find the entry point."""
    for package in PACKAGES:
        module = importlib.import_module(package)
        exported = {
            name
            for name, value in vars(module).items()
            if not name.startswith("_") and not isinstance(value, types.ModuleType) and name != "annotations"
        }
        declared = list(getattr(module, "__all__", []))
        # What a module imports only when it is asked for.
        exported |= {name for name in declared if name not in vars(module) and hasattr(module, name)}
        if sorted(exported) != sorted(declared):
            yield f"{package}.__all__ is not what it exports: {exported ^ set(declared)}"
    errors = importlib.import_module("flowactions_hookspecs.errors")
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, Exception) and not issubclass(value, Warning):
            if str(value()) != (value.__doc__ or "").partition("\n")[0]:
                yield f"{name}, raised without a message, does not say what its docstring says"
            if name not in (errors.__doc__ or ""):
                yield f"{name} is missing from the drawn tree"
    points = metadata.entry_points(group="flowactions", name="flowactions-plugin")
    if [each.value for each in points] != ["flowactions_plugin.plugin"]:
        yield "the distribution does not name its plugin"


def of_loggers() -> Iterator[str]:
    """A logger with another name would be disabled by `logging.config`, and raise what the host's handlers raise."""
    files = [*SOURCES.values(), *(path.read_text() for path in (ROOT / "hookspecs").rglob("*.py"))]
    named = {name for text in files for name in re.findall(r'getLogger\("(flowactions[\w.]*)"', text)}
    if not named or not named <= {*NAMES}:
        yield f"loggers that are not among {NAMES}: {named - {*NAMES}}"


def writers(tree: ast.AST, within: str = "") -> Iterator[tuple[str, ast.AsyncFunctionDef | ast.FunctionDef]]:
    """Give the innermost functions that call ``write`` of a database."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.ClassDef):
            yield from writers(node, f"{node.name}.")
        elif isinstance(node, ast.AsyncFunctionDef | ast.FunctionDef):
            inner = list(writers(node, f"{within}{node.name}."))
            yield from inner
            if not inner and re.search(r"\b_?database\.write\(", ast.unparse(node)):
                yield f"{within}{node.name}", node


def of_transactions() -> Iterator[str]:
    """A function that may begin a transaction with `Database.write` is `repeated`, or only joins the caller's."""
    found = [each for tree in TREES.values() for each in writers(tree)]
    if len(found) < 30:
        yield "functions that write are not found"
    for name, function in found:
        repeated = any("repeated" in ast.unparse(each) for each in function.decorator_list)
        if not repeated and name not in {"Outbox._join", "Outbox.together"}:
            yield f"{name} begins a transaction, and is not repeated after a conflict"


SAID: Final = {
    r"takeovers (?:<|>=) (\d+)": str(QUARANTINE_AFTER),
    r"(?:octet_)?length\(body\) <= (\d+)": str(SMALL_BYTES),
    r"next_attempt_at, id LIMIT (\d{2,})": str(MOST_OF_A_LANE),
    r"substr\((?:claimed_by|done\.token|done\.value ->> 'token'), 1, (\d+)\)": str(PREFIX_DIGITS),
    r"\b(2534\d+)": str(BEHIND_MS),
    r"CAST\('(-\d+)' AS bigint\)": str(EVER),
    r"last_error, '([^']+)', ''": MAY_BE_SENT,
    r"paused_role = '(\w+)'": AUTOMATIC.role,
    r"probe_at LIMIT (\d+)": str(AT_ONCE),
    r"LIKE '%\"(\w+)\"%'": PROBE,
}
"""What the statements' files say, by an expression that finds it, and what the code says."""

FREE: Final = re.compile(
    r"\(claimed_until IS NULL OR claimed_until <= (\S+(?: AS bigint\))?)"
    r" - CASE WHEN substr\(claimed_by, 1, 8\) = :own THEN 0 ELSE CAST\(:grace AS bigint\) END\)"
)
"""Whether a row is free: those are left alone that another worker may still send."""

LOOKS: Final = {
    f"{name}.{database}"
    for name in ("claim", "claim_quarantined", "any_quarantined", "scan", "peek", "probes")
    for database in ("postgresql", "sqlite")
} | {"look"}
"""Which statements look for rows, or claim them."""


def of_statements() -> Iterator[str]:
    """The files of the statements say the same as the code and as each other, and each is used."""
    files = {path.stem: " ".join(path.read_text().split()) for path in FOLDER.glob("*.sql")}
    for pattern, said in SAID.items():
        found = {match for words in files.values() for match in re.findall(pattern, words) if match}
        if found != {said}:
            yield f"statements say {sorted(found)} at {pattern}, the code says {said}"
    for name in files:
        if name.partition(".")[0] in {"claim", "claim_quarantined"}:
            returned = files[name].rpartition("RETURNING ")[2]
            while returned != (returned := re.sub(r"\([^()]*\)", "", returned)):
                pass  # what stands in the inner ones first
            if tuple(e.split()[-1] for e in returned.split(",")) != (
                *COLUMNS,
                "lane",
                "next_attempt_at",
                "size",
            ):
                yield f"{name} does not return the columns in the order in which they are read"
    code = "".join(SOURCES.values())
    for name in {name.partition(".")[0] for name in files}:
        if not re.search(rf'(?:statement, |_rows\(|_claim\(|_lanes\(|_read\(|else )"{name}"', code):
            yield f"nothing uses the statement {name}"


def of_free_rows() -> Iterator[str]:
    """One rule says whether a row is free, in all statements that look for rows or claim them."""
    files = {path.stem: " ".join(path.read_text().split()) for path in FOLDER.glob("*.sql")}
    looks = {name: FREE.findall(words) for name, words in files.items() if "claimed_until IS NULL" in words}
    if looks.keys() != LOOKS:
        yield f"other statements look for rows that are free: {looks.keys() ^ LOOKS}"
    for name, moments in looks.items():
        if moments != ["CAST(:looked_at AS bigint)" if name.startswith("claim") else "{now}"]:
            yield f"{name} has a rule of its own of which rows are free"


BOUND: Final = re.compile(
    r"(?i)(?<!keep-alive: )(?<!keep-alive:)(?:asyncio\.timeout\(|\btimeout=|\.wait\(|\.wait, |\.join\(|wait_for\(.*, )(\d+)\b(?!_000)"
)
FIXED: Final = ("tests/benchmarks/", "tests/conformance/hosts/", "tests/conformance/faulty.py")
"""Measured, or how long a host waits."""


def of_hangs() -> Iterator[str]:
    """A test waits for 300 s at least before it says that something hangs: a busy machine may need 60 s."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if not name.startswith(FIXED) and any(5 <= int(each) < 300 for each in BOUND.findall(line)):
                yield f"{name}:{number} waits for less than 300 s: {line.strip()}"


EACH: Final = (
    of_imports,
    of_databases,
    of_exports,
    of_loggers,
    of_transactions,
    of_statements,
    of_free_rows,
    of_hangs,
)
