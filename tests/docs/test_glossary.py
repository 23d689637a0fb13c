from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
PACKAGES = ("flowactions_plugin", "hookspecs", "conformance")
PLUGIN = "flowactions_plugin/"
OUTBOX = r"flowactions_plugin/(outbox|egress)/|flowactions_plugin/services\.py"
ANYWHERE = ""

TERM = re.compile(r"^\| \*\*(.+?)\*\* \|", re.MULTILINE)

RETIRED = {
    # name: (where, what it is called now)
    "courier": (ANYWHERE, "executor, completer"),
    "Courier": (ANYWHERE, "Executor, Completer"),
    "a_courier": (ANYWHERE, "an_executor"),
    "bell": (ANYWHERE, "notifier"),
    "Bell": (ANYWHERE, "Notifier"),
    "ring": (PLUGIN, "notify"),
    "keep_listening": (ANYWHERE, "Listener"),
    "heard": (PLUGIN, "on_notify"),
    "bury": (ANYWHERE, "mark_dead"),
    "buried": (ANYWHERE, "marked_dead"),
    "recall": (PLUGIN, "rescue"),
    "recalled": (PLUGIN, "rescued"),
    "recall_at": (PLUGIN, "rescue_at"),
    "RECALL_SECONDS": (PLUGIN, "RESCUE_SECONDS"),
    "takeover": (ANYWHERE, "reclaim"),
    "handed_over": (ANYWHERE, "reclaimed"),
    "wish": (ANYWHERE, "demand"),
    "Wish": (ANYWHERE, "ClaimRequest"),
    "share": (OUTBOX, "per-destination limit"),
    "busy": (OUTBOX, "in_flight"),
    "look": (OUTBOX, "validate, resolve"),
    "Look": (ANYWHERE, "validate, resolve"),
    "told": (f"{PLUGIN}(auth_events|inbound|chat|http)/", "parsed event"),
    "Told": (PLUGIN, "ParsedEvent"),
    "Seen": (PLUGIN, "already_processed"),
    "tell": (f"{PLUGIN}nodes/", "notify_host"),
    "TELLING": (PLUGIN, "MAX_PENDING_CALLBACKS"),
    "GATHER_SECONDS": (ANYWHERE, "linger"),
    "hold": (f"{PLUGIN}nodes/", "lease"),
    "HELD_ENOUGH_SECONDS": (ANYWHERE, "RENEW_AFTER"),
    "WHOLE_SECONDS": (ANYWHERE, "FULL_SCAN_INTERVAL"),
    "BEHIND_MS": (ANYWHERE, "SCAN_MARGIN"),
    "at_once": (f"{PLUGIN}(storage|outbox)/", "in_transaction"),
    "table_of": (PLUGIN, "values_table"),
    "look_at": (PLUGIN, "pre_ping"),
    "note_use": (PLUGIN, "mark_used"),
    "last_words": (ANYWHERE, "drain"),
    "to_the_end": (ANYWHERE, "shielded"),
    "in_words": (ANYWHERE, "error_message"),
    "means": (PLUGIN, "applies_to"),
    "take": (r"flowactions_plugin/.*store\.py", "pop, delete_returning"),
    "described": (PLUGIN, "openapi_spec"),
    "documented": (PLUGIN, "with_description"),
    "Install": (PLUGIN, "OAuthInstaller"),
    "freeze": (PLUGIN, "serialize"),
    "spoilt": (PLUGIN, "corrupt"),
    "worn": (PLUGIN, "exhausted"),
    "anybodys_chat": (ANYWHERE, "public_chat"),
    "any_chat": (ANYWHERE, "authenticated_chat"),
    "queue.py": (f"{PLUGIN}outbox/", "enqueue.py"),
    "delivery.py": (f"{PLUGIN}outbox/", "rules.py"),
    "post": (OUTBOX, "send"),
    "prepare": (f"{PLUGIN}logic/", "resolve"),
}
"""Identifiers that were given up, with where that holds. Only definitions count; words in sentences are free."""


def terms() -> list[str]:
    """Give the words of the glossary, in its order."""
    return TERM.findall(GLOSSARY.read_text())


@cache
def corpus() -> str:
    """Give all code, tests and pages but the glossary and this one, in small letters, identifiers as words."""
    own = {GLOSSARY, Path(__file__)}
    files = [path for place in (*PACKAGES, "tests", "docs") for path in (ROOT / place).rglob("*.[pm][yd]")]
    text = "\n".join(path.read_text() for path in [*files, *ROOT.glob("*.md")] if path not in own)
    text = re.sub(r"(?<=[a-z])(?=[A-Z])|[_`*]", " ", text)
    return " ".join(text.lower().split())


@pytest.mark.parametrize("term", terms())
def test_a_word_of_the_glossary_is_used(term: str) -> None:
    """A word that neither code nor pages use needs no explanation."""
    words = [rf"{re.escape(word)}(s|es|ed|d)?" for word in term.lower().split()]
    is_used = re.search(rf"\b{' '.join(words)}\b", corpus()) is not None
    assert is_used


def test_the_words_are_in_order_and_explained_once() -> None:
    """A reader finds a word by its letters, in one place."""
    found = [term.lower() for term in terms()]
    assert len(found) > 30
    assert found == sorted(set(found))


def definitions(path: Path) -> Iterator[str]:
    """Give the names that a file defines: modules, functions, classes, arguments, variables and attributes."""
    yield path.name
    yield path.stem
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


@cache
def retired() -> dict[str, list[str]]:
    """Find the retired identifiers that are defined, and where."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for place in (*PACKAGES, "tests"):
        for path in sorted((ROOT / place).rglob("*.py")):
            where = path.relative_to(ROOT).as_posix()
            for name in sorted({each.strip("_") for each in definitions(path)}):
                if name in RETIRED and re.match(RETIRED[name][0], where):
                    found[name].append(where)
    return dict(found)


def test_no_retired_identifier_comes_back() -> None:
    """What was renamed to the field's term is not defined again under its old name."""
    found = {f"{name} (now: {RETIRED[name][1]})": places for name, places in retired().items()}
    assert not found
