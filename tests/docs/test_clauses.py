from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import clauses
from tests.docs.clauses import MODULE, Mark, marks_of_code, marks_of_tests, render, without_parts
from tests.docs.test_links import broken

CLAUSES = clauses.clauses()

ROOMS: dict[str, set[str]] = {
    "1.1": {"services.py"},
    "1.2": {"nodes"},
    "1.3": {"chat"},
    "1.4": {"queue"},
    "1.5": {"logic"},
    "1.6": {"chat", "inbound"},
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
    "9": {"storage"},
}
"""The rooms of the plugin that carry a section out: a citation elsewhere is of the wrong section."""


def test_every_clause_has_code_and_a_test() -> None:
    """A clause that is not divided further is cited by the code that carries it out, and by a test that shows it."""
    assert len(CLAUSES) > 40
    code = {mark.number for mark in marks_of_code()}
    tested = {mark.number for mark in marks_of_tests()}
    lacking = [
        f"§{clause.number} has no {what}: {clause.title}"
        for clause in without_parts(CLAUSES)
        for what, cited in (("code", code), ("test", tested))
        if clause.number not in cited
    ]
    assert not lacking, "\n".join(lacking)


def test_a_citation_leads_to_a_function_of_the_clauses_room() -> None:
    """In the plugin, not to a module; and in a room that has to do with the section."""
    wrong = []
    for mark in marks_of_code():
        package, room, *_ = mark.path.relative_to(clauses.ROOT).parts
        section = ".".join(mark.number.split(".")[:2])
        if package == "flowactions_plugin" and (mark.name == MODULE or room not in ROOMS.get(section, ())):
            wrong.append(f"{room}: §{mark.number} at {mark.name} of {mark.path.name}")
    assert wrong == []


def test_the_index_has_every_clause() -> None:
    """A row for each, in order, and every link of it leads somewhere."""
    index = render()
    assert [line.split("](")[0] for line in index.splitlines()[2:]] == [
        f"| [§{each.number}" for each in CLAUSES
    ]
    assert broken(clauses.BEHAVIOUR / "README.md", index) == []


SOURCE = '''"""Module, §1."""

LIMIT = 3
"""Under a constant, §2.1."""

OTHER = 4  # §2.2


class Config:
    """A class, §3."""

    def method(self) -> str:
        # §4.1.2 in a comment
        return "no prose: §9"


def test_it() -> None:
    """As §5.3.6 and RFC 9562 §5.7 say (§8)."""
'''


def test_a_mark_belongs_to_what_it_stands_in(tmp_path: Path) -> None:
    """Docstrings and comments are read, other strings are not, and each mark is put to the innermost name."""
    path = tmp_path / "source.py"
    path.write_text(SOURCE)
    assert list(clauses._marks(path)) == [
        Mark("1", path, MODULE),
        Mark("2.1", path, "LIMIT"),
        Mark("2.2", path, "OTHER"),
        Mark("3", path, "Config"),
        Mark("4.1.2", path, "Config.method"),
        Mark("5.3.6", path, "test_it"),
        Mark("8", path, "test_it"),
    ]


@pytest.mark.parametrize(("number", "divided"), [("5.3", True), ("5.3.6", False), ("8", False), ("2", True)])
def test_only_the_smallest_parts_need_both(number: str, *, divided: bool) -> None:
    """A section with sections or items of its own is covered by those."""
    assert (number not in {clause.number for clause in without_parts(CLAUSES)}) is divided
