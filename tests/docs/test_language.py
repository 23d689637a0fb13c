from __future__ import annotations

import pytest

from flowactions_conformance.kit.requirements import frozen
from tests.docs.checks import PAGE as CHECKS
from tests.docs.language import findings, messages, of_script, sentences, shown, texts


def test_every_text_is_written_in_plain_english() -> None:
    """No page, decision, docstring of the contract or message has a long sentence or a turn of phrase."""
    found = [each for file, text in texts() for each in findings(file, text)]
    assert found == []


def test_decisions_are_read_and_frozen_titles_are_not() -> None:
    """A decision is a page like any other; the title of a requirement cannot be changed."""
    read = dict(texts())
    assert "docs/decisions/0076-lanes.md" in read
    titles = [each["title"] for each in frozen()["required"].values()]
    assert [title for title in titles if title in read["docs/reference/conformance.md"]] == []
    assert [title for title in titles if title in CHECKS.read_text()] != []


@pytest.mark.parametrize(
    "text",
    [
        "There is a setting.",
        "The page to which a person returns who has connected a workspace.",
        "The row is gone.",
        "Everything else reaches your app as if nothing were there.",
        "It stops them the other way round.",
        "An operator mends it.",
        "It is sent all the same.",
        "The command says what came of it.",
        "It is sent once, however often it is called.",
        "The text is sent as it stands.",
        "A name stands in double quotes.",
        "An operator can take it back.",
        "It is said once.",
        "The id tells passages apart.",
        "Workers carry it out.",
        "Racing callers get the same answer.",
        "It is left out, for it may be a secret.",
        "The webhook never loses it.",
        f"{'word ' * 31}.",
        "- an item\n- there are\n  two\n",
        "| a | there is |\n",
        "FlowActionsError\n├── HostInvalid  there is\n└── NotStarted  its lifespan\n",
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
