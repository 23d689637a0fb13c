from __future__ import annotations

import pytest

from tests.docs.language import allowed, counted, findings, messages, of_script, sentences, shown


def test_a_page_is_written_in_plain_english() -> None:
    """No file has more long sentences or turns of phrase than it had, and its count is lowered when it has fewer."""
    found, before = counted(), allowed()
    more = {file: (count, before.get(file, 0)) for file, count in found.items() if count > before.get(file, 0)}
    assert not more, f"found and allowed: {more}; list them: python -m tests.docs.language FILE"
    fewer = {file: (found.get(file, 0), count) for file, count in before.items() if found.get(file, 0) < count}
    assert not fewer, f"found and allowed: {fewer}; write it down: python -m tests.docs.language --write"


def test_what_most_people_read_first_has_no_exceptions() -> None:
    """README, tutorials and guides."""
    first = ("README.md", "docs/index.md", "docs/tutorials/", "docs/how-to/")
    assert [file for file in allowed() if file.startswith(first)] == []


@pytest.mark.parametrize(
    "text",
    [
        "There is a setting.",
        "The page to which a person returns who has connected a workspace.",
        "The row is gone.",
        "Everything else reaches your app as if nothing were there.",
        "It stops them the other way round.",
        "The webhook never loses it.",
        f"{'word ' * 31}.",
        "- an item\n- there are\n  two\n",
        "| a | there is |\n",
    ],
)
def test_a_turn_of_phrase_is_found(text: str) -> None:
    """In a paragraph, an item and a cell."""
    assert len(list(findings("page.md", text))) == 1


def test_code_and_short_sentences_are_let_through() -> None:
    """A block of code is no sentence, and code within one is one word."""
    text = f"One.\nTwo `there is {'word ' * 40}` and so on. Three.\n\n```text\nthere is {'word ' * 40}\n```\n"
    assert list(findings("page.md", text)) == []
    assert [each for each in sentences(text) if each] == ["One.", "Two CODE and so on.", "Three."]


def test_what_a_program_says_is_read_too() -> None:
    """Errors, log lines and helps, with values as one word; documentation, SQL and names are none."""
    source = '''"""There is a module."""
NAME = "there is"
QUERY = "SELECT there is a row"
raise Problem(f"there is no row {row.id} here")
log.info("the row " "is gone now")
'''
    assert list(messages(source)) == ["there is no row X here", "the row is gone now"]


def test_what_a_script_says_is_read_too() -> None:
    """Strings and templates, with values as one word; comments and names are none."""
    source = """// there is a comment
const url = "https://there.example"; // 'there is one'
note.textContent = `There are ${count} more${all ? "" : `, of ${all} that there are`}: again.`;
/* there is */ show('the row is "gone" now', "a name");
"""
    assert list(of_script(source)) == [
        ", of X that there are",
        "There are X moreX: again.",
        'the row is "gone" now',
    ]


def test_a_template_is_read_as_it_is_shown() -> None:
    """Without markup, statements and comments: text around a link is one sentence, and a cell one of its own."""
    template = (
        '{# no #}<td title="x">There {% if a %}</td><p>The <b>row</b> {{ row.id }} is <a href="/">gone</a>.</p>'
    )
    assert [each.rule.partition(":")[0] for each in findings("page.html", shown(template))] == ["'is gone'"]
