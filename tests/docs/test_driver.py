from __future__ import annotations

from flowactions_conformance import HostDriver
from flowactions_conformance import __all__ as public
from tests.docs.driver import COMMAND, PAGE, documented, render


def test_the_page_of_the_driver_is_current() -> None:
    """It is what the docstrings give."""
    assert PAGE.read_text() == render(), COMMAND


def test_all_that_an_author_writes_against_is_on_it() -> None:
    """Each method, and each struct that the package exports."""
    text = render()
    for name, member in vars(HostDriver).items():
        assert not callable(member) or f"\n### {name}\n" in text
    for name in set(public) - {"Factory", "HostDriver", "Item", "conformance_suite", "one_host_per_process"}:
        assert f"\n## {name}\n" in text


def test_a_docstring_is_split_into_its_parts() -> None:
    """Arguments over several lines are one text."""
    said = documented(
        "One ``two``.\n\nThree.\n\nArgs:\n    a: first\n        line.\n    b: second.\n\nRaises:\n    X: never."
    )
    assert said.about == "One `two`.\n\nThree."
    assert said.arguments == {"a": "first line.", "b": "second."}
    assert said.more == {"Raises": "X: never."}
