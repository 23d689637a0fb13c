from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.docs import clauses

ROOT = Path(__file__).parents[2]
BEHAVIOUR = ROOT / "docs" / "reference" / "behaviour"
PAGES = sorted(BEHAVIOUR.glob("[0-9]-*.md"))
PLACES = ("flowactions_plugin", "hookspecs", "conformance", "tests", "docs")

ANCHOR = re.compile(r'<a id="(\d+(?:\.\d+)*)"></a>')
HEADING = re.compile(r'^(?:<a id="([\d.]+)"></a>\n\n)?#+ §([\d.]+) ', re.MULTILINE)
ITEM = re.compile(r'^(\d+)\. <a id="([\d.]+)"></a>', re.MULTILINE)


class Citation(NamedTuple):
    """A number behind a section sign, and where it stands."""

    where: str
    number: str


def citations(text: str, name: str) -> Iterator[Citation]:
    """Find the sections that a text cites; those of RFCs are theirs."""
    for place, number in clauses.citations(text):
        yield Citation(f"{name}:{text.count(chr(10), 0, place) + 1}", number)


def cited() -> list[Citation]:
    """Find every citation in code, tests and documents."""
    files = [path for place in PLACES for kind in ("*.py", "*.md") for path in (ROOT / place).rglob(kind)]
    return [
        citation
        for path in sorted([*files, *ROOT.glob("*.md")])
        for citation in citations(path.read_text(), str(path.relative_to(ROOT)))
    ]


def anchors() -> Counter[str]:
    """Count the numbered anchors of the behaviour pages."""
    return Counter(number for page in PAGES for number in ANCHOR.findall(page.read_text()))


def test_every_cited_section_exists() -> None:
    """A section sign in code, tests or documents leads to an anchor with exactly that number."""
    found = cited()
    assert len(found) > 100
    there = anchors()
    lost = [f"{where} cites §{number}" for where, number in found if number not in there]
    assert not lost, f"no such section or item in {BEHAVIOUR.relative_to(ROOT)}:\n" + "\n".join(lost)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("as §2.4 and §5.3.6 say (§8).", ["2.4", "5.3.6", "8"]),
        ("§§1 and § 9, but not RFC 9562 §5.7 nor RFC 9110, §15.2", ["1", "9"]),
    ],
)
def test_citations_are_found(text: str, numbers: list[str]) -> None:
    """A full stop that ends a sentence is no part of a number, and an RFC's section is the RFC's."""
    assert [citation.number for citation in citations(text, "")] == numbers


def test_an_anchor_is_unique_and_on_its_own_page() -> None:
    """A number has one anchor, on the page of its section."""
    assert [number for number, count in anchors().items() if count > 1] == []
    for page in PAGES:
        assert {number[0] for number in ANCHOR.findall(page.read_text())} == {page.name[0]}, page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_an_anchor_has_the_number_of_its_heading_or_item(page: Path) -> None:
    """A heading's anchor stands before it and has its number; a list item's has its section's number and its own."""
    text = page.read_text()
    headings = list(HEADING.finditer(text))
    assert [match[1] for match in headings] == [match[2] for match in headings]
    numbered = {match[1] for match in headings}
    for match in ITEM.finditer(text):
        section = [heading[2] for heading in headings if heading.start() < match.start()][-1]
        assert match[2] == f"{section}.{match[1]}"
        numbered.add(match[2])
    assert set(ANCHOR.findall(text)) == numbered


def test_the_index_leads_to_every_section() -> None:
    """Sections 1 to 9 have a page each, in the index under the title that it has."""
    titles = {page.name: re.search(r"^# (§.*)$", page.read_text(), re.MULTILINE) for page in PAGES}
    rows = re.findall(r"^\| \[(§.*?)\]\((.*?)#(\d)\) \|", (BEHAVIOUR / "README.md").read_text(), re.MULTILINE)
    assert [number for *_, number in rows] == list("123456789")
    assert {page: title for title, page, _ in rows} == {
        name: title and title[1] for name, title in titles.items()
    }
