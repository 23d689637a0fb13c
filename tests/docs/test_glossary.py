from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
PACKAGES = ("flowactions_plugin", "hookspecs", "conformance")

TERM = re.compile(r"^\| \*\*(.+?)\*\* \|", re.MULTILINE)


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
