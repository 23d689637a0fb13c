"""What can be checked of texts and code alone, a step of `.ci/run`: ``python -m tests.docs.lint`` lists what is wrong.

The language of pages and messages, the words of the glossary, links, the clauses with their citations, and what modules beside
this one add: pages that say the same as the code, blocks that can be right, rules of the code, and weights.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Final

from tests import test_weight
from tests.docs import agreement, blocks, clauses, code, language, module_state, readers
from tests.docs.clauses import MODULE, marks_of_code, marks_of_tests, without_parts
from tests.docs.fences import ROOT
from tests.docs.links import broken, documents

ROOMS: Final[dict[str, set[str]]] = {
    "2": {"nodes"},
    "2.1": {"nodes"},
    "2.2": {"chat", "cli", "storage"},
    "2.3": {"chat", "cli"},
    "2.4": {"cli", "egress", "nodes"},
    "2.5": {"insights", "logic", "nodes", "queue"},
    "2.6": {"egress", "queue"},
    "2.7": {"logic"},
    "2.8": {"logic"},
    "3.1": {"insights", "nodes", "queue"},
    "3.2": {"nodes", "services.py"},
    "4": {"http"},
    "4.1": {"chat"},
    "4.2": {"logic", "queue"},
    "4.3": {"api", "operations"},
    "4.4": {"inbound", "settings"},
    "4.5": {"egress"},
    "5.1": {"http", "pages"},
    "5.2": {"chat"},
    "5.3": {"cli", "egress", "insights", "nodes", "queue", "settings"},
    "5.4": {"chat", "inbound", "settings"},
    "5.5": {"chat", "settings"},
    "6.1": {"insights", "queue"},
    "6.2": {"chat", "cli"},
    "6.3": {"nodes"},
    "7.1": {"nodes"},
    "7.2": {"nodes"},
    "7.3": {"http", "pages"},
    "8": {"chat", "egress", "logic", "queue", "settings", "storage"},
}
"""The rooms of the plugin that carry a section out: a citation elsewhere is of the wrong section."""

ANCHOR: Final = re.compile(r'<a id="(\d+(?:\.\d+)*)"></a>')
NUMBERED: Final = re.compile(
    r'^(?:<a id="([\d.]+)"></a>\n\n)?#+ §([\d.]+) |^(\d+)\. <a id="([\d.]+)"></a>', re.MULTILINE
)
"""A heading with the anchor before it, or an item with the one in it."""

PLACES: Final = ("flowactions_plugin", "hookspecs", "conformance")
GLOSSARY: Final = ROOT / "docs" / "glossary.md"
TERM: Final = re.compile(r"^\| \*\*(.+?)\*\* \|", re.MULTILINE)


def of_clauses() -> Iterator[str]:
    """Give clauses without code or a test, citations at a wrong place, and links of their index that lead nowhere."""
    every = clauses.clauses()
    for what, marks in (("code", marks_of_code()), ("test", marks_of_tests())):
        cited = {mark.number for mark in marks}
        yield from (
            f"§{each.number} has no {what}: {each.title}"
            for each in without_parts(every)
            if each.number not in cited
        )
    for mark in marks_of_code():
        package, room, *_ = mark.path.relative_to(ROOT).parts
        section = ".".join(mark.number.split(".")[:2])
        if package == "flowactions_plugin" and (mark.name == MODULE or room not in ROOMS.get(section, ())):
            yield f"{room}: §{mark.number} at {mark.name} of {mark.path.name}"
    yield from broken(clauses.BEHAVIOUR / "README.md", clauses.render())


def of_behaviour() -> Iterator[str]:
    """Give citations of sections that nobody has, and numbers of the behaviour pages that are not those of their places."""
    pages = sorted(clauses.BEHAVIOUR.glob("[0-9]-*.md"))
    there = Counter(number for page in pages for number in ANCHOR.findall(page.read_text()))
    yield from (f"§{number} has {count} anchors" for number, count in there.items() if count > 1)
    files = [path for place in (*PLACES, "tests", "docs") for path in (ROOT / place).rglob("*.[pm][yd]")]
    for path in sorted([*files, *ROOT.glob("*.md")]):
        for _, number in clauses.citations(path.read_text()):
            if number not in there:
                yield f"{path.relative_to(ROOT)} cites §{number}, which is not there"
    rows = re.findall(
        r"^\| \[(§.*?)\]\((.*?)#(\d)\) \|", (clauses.BEHAVIOUR / "README.md").read_text(), re.MULTILINE
    )
    if [number for *_, number in rows] != list("2345678"):
        yield "the index of the behaviour pages has not the sections 2 to 8"
    for page in pages:
        text = page.read_text()
        title = re.search(r"^# (§.*)$", text, re.MULTILINE)
        if title is None or (title[1], page.name, page.name[0]) not in rows:
            yield f"{page.name} has another title in the index"
        section, expected = "", set()
        for heading, said, item, anchor in NUMBERED.findall(text):
            section = said or section
            number = said or f"{section}.{item}"
            expected.add(number)
            if (heading or anchor) != number or number[0] != page.name[0]:
                yield f"{page.name}: {heading or anchor} is the anchor of {number}"
        if {*ANCHOR.findall(text)} != expected:
            yield f"{page.name}: an anchor is at no heading and no item"


def of_links() -> Iterator[str]:
    """Give links that lead to no file, heading or anchor."""
    for page in documents():
        yield from (f"{page.relative_to(ROOT)}: {each}" for each in broken(page, page.read_text()))


def of_glossary() -> Iterator[str]:
    """Give words of the glossary that are not in order, or that neither code nor pages use."""
    terms = [term.lower() for term in TERM.findall(GLOSSARY.read_text())]
    if terms != sorted({*terms}):
        yield "the words of the glossary are not in order, or one is there twice"
    files = [
        path
        for place in (*PLACES, "tests", "docs")
        for path in (ROOT / place).rglob("*.[pm][yd]")
        if path != GLOSSARY
    ]
    text = "\n".join(path.read_text() for path in [*files, *ROOT.glob("*.md")])
    corpus = " ".join(re.sub(r"(?<=[a-z])(?=[A-Z])|[_`*]", " ", text).lower().split())
    for term in terms:
        words = " ".join(rf"{re.escape(word)}(?:s|es|ed|d)?" for word in term.split())
        if not re.search(rf"\b{words}\b", corpus):
            yield f"nothing uses the word '{term}' of the glossary"


def of_language() -> Iterator[str]:
    """Give sentences that are too long, or that have a turn of phrase."""
    for file, text in language.texts():
        for each in language.findings(file, text):
            yield f"{each.file}: {each.rule}\n    {each.sentence}"


EACH: Final = (
    of_clauses,
    of_behaviour,
    of_links,
    of_glossary,
    of_language,
    *agreement.EACH,
    *code.EACH,
    blocks.of_blocks,
    blocks.of_sentences,
    module_state.faults,
    readers.of_guides,
    test_weight.faults,
)


def main() -> int:
    """Print what is wrong; return 1 if anything is."""
    wrong = [each for rule in EACH for each in rule()]
    sys.stdout.write("".join(f"{each}\n" for each in wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
