from __future__ import annotations

import json
import sys
from operator import itemgetter

import pytest

from flowactions_plugin.cli.output import block, json_ready, line, status, table, write_json
from flowactions_plugin.clock import moment

HOSTILE = {
    "colour": "\x1b[31mred\x1b[0m",
    "hyperlink": "\x1b]8;;https://evil.example\x1b\\click\x1b]8;;\x1b\\",
    "clipboard": "\x1b]52;c;ZXZpbA==\x07",
    "title": "\x9d0;owned\x9c",
    "bidi": "user\u202egnp.exe",
    "isolate": "\u2066a\u2069",
    "nul": "a\0b",
    "newline": "a\nflowactions: all is well",
    "separator": "a\u2028b\u0085c",
    "return": "good\rbad",
    "surrogate": "\ud800",
    "paste": "\x1b[201~rm -rf ~\n",
    "markup": "[bold]loud[/bold] [link=https://evil.example]x[/link] :skull:",
}


def assert_safe(shown: str) -> None:
    """Nothing in it can reach a terminal as more than text in lines."""
    assert all(character.isprintable() or character == "\n" for character in shown), repr(shown)


@pytest.mark.parametrize("name", HOSTILE)
def test_no_text_reaches_a_terminal_raw(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever writes it: one text stays one line, and shows its control characters as escapes."""
    text = HOSTILE[name]
    line(text)
    status(text)
    table([(text, 1), ("a", None)], {"column": itemgetter(0), "other": itemgetter(1)})
    out, err = capsys.readouterr()
    assert_safe(out + err)
    assert err.count("\n") == 1
    assert out.count("\n") == 4
    block(text)
    out, _ = capsys.readouterr()
    assert_safe(out)
    assert all(each.startswith("    ") for each in out.splitlines())
    write_json({"organization": text})
    out, _ = capsys.readouterr()
    assert out.isascii()
    assert_safe(out)
    assert json.loads(out)["organization"] == text


def test_a_table_interprets_no_markup_and_cuts_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no terminal, scripts read it; in one, no line is longer than it is wide."""
    rows, columns = (
        [(HOSTILE["markup"], 7, "x" * 500)],
        {"a": itemgetter(0), "n>": itemgetter(1), "b": itemgetter(2)},
    )
    table(rows, columns)
    head, row = capsys.readouterr().out.splitlines()
    width = len(HOSTILE["markup"])
    assert (head, row) == (f"{'a':{width}}  n  b", f"{HOSTILE['markup']}  7  {'x' * 500}")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    table(rows, columns)
    head, row = capsys.readouterr().out.splitlines()
    assert (len(row), row[-2:]) == (80, "x…")


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (2**53 - 1, 2**53 - 1),
        (2**53, str(2**53)),
        (-(2**53), str(-(2**53))),
        ([{"a": 2**64}], [{"a": str(2**64)}]),
        (True, True),
        (1.5, 1.5),
    ],
)
def test_integers_that_programs_read_differently_are_text(value: object, written: object) -> None:
    """RFC 7493 §2.2."""
    assert json_ready(value) == written


def test_a_time_is_utc() -> None:
    """Also one that is none is shown, and not an error."""
    assert moment(1_700_000_000_123) == moment("2023-11-14T22:13:20.123Z") == "2023-11-14T22:13:20Z"
    assert moment(None) == ""
    assert moment(2**62, "?") == "?"
