"""Mistakes of receivers: the function of the page says which row of its table each of them is, and every language refuses them."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.docs.fences import ROOT, blocks_of
from tests.receivers.cases import SIGNATURE, STAMP, TIMESTAMP, mac
from tests.receivers.languages import LANGUAGES, Language

PAGE = ROOT / "docs" / "how-to" / "signature-does-not-verify.md"
SECRET, SENT = "s3cret", b'{ "total": 1.10, "note": "\xff" }'
STANDARD = "whsec_c2VjcmV0cw=="

Header = tuple[str, str]


def signed(secret: str = SECRET) -> list[Header]:
    """Give the headers of a request as the service sends it."""
    return [
        (TIMESTAMP, str(STAMP)),
        (SIGNATURE, f"v1,{mac(str(STAMP), SENT, secret)}"),
        ("content-length", str(len(SENT))),
    ]


def case(row: str, **changes: Any) -> dict[str, Any]:
    """Describe what a receiver gives to the function, and the row of the page."""
    right = {"secrets": SECRET, "headers": signed(), "body": SENT, "now": STAMP}
    return {"row": row, **right, **changes}


CASES = [
    case("verifies"),
    case("body parsed or decoded", body=b'{"total":1.1,"note":"\xff"}'),
    case("body parsed or decoded", body=SENT.decode(errors="replace").encode()),
    case("body already read", body=b""),
    case("secret with more around it", secrets=f"{SECRET}\n"),
    case("secret with more around it", secrets=f'"{SECRET}"'),
    case("masked secret", secrets="••••••"),
    case("decoded secret", secrets=STANDARD.removeprefix("whsec_"), headers=signed(STANDARD)),
    case("decoded secret", secrets="secrets", headers=signed(STANDARD)),
    case("no secret here", secrets=""),
    case("not signed", headers=[each for each in signed() if each[0] != SIGNATURE]),
    case("headers removed", headers=signed()[2:]),
    case("headers doubled", headers=[*signed(), *signed()[:2]]),
    case("headers doubled", headers=[(name, f"{value}, {value}") for name, value in signed()[:2]]),
    case("clock or queue", now=STAMP + 301),
    case("clock or queue", now=STAMP - 600),
    case("another secret, or changed body", secrets="of another node"),
    case("another secret, or changed body", body=SENT.replace(b"1.10", b"1.20")),
]


@pytest.fixture(scope="module")
def explain() -> Callable[..., str]:
    namespace: dict[str, Any] = {}
    exec(blocks_of(PAGE)[0].text, namespace)  # noqa: S102  the project's own documents
    found: Callable[..., str] = namespace["explain"]
    return found


def test_the_function_names_the_row_of_each_mistake(explain: Callable[..., str]) -> None:
    """Also with the names of headers as Rack and PHP write them; no row is without a mistake that is tried."""
    told = [(each, explain(each["secrets"], each["headers"], each["body"], each["now"])) for each in CASES]
    assert [(each["row"], row) for each, row in told if each["row"] != row] == []
    as_rack = [(f"HTTP_{name.upper().replace('-', '_')}", value) for name, value in signed()]
    assert explain(SECRET, as_rack, SENT, STAMP) == "verifies"
    table = PAGE.read_text().partition("## The table\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)[1:]
    assert rows == [*dict.fromkeys(each["row"] for each in CASES)]


@pytest.mark.ci
@pytest.mark.receivers
@pytest.mark.parametrize("language", LANGUAGES, ids=lambda language: language.title)
def test_every_language_refuses_what_the_table_explains(language: Language, tmp_path: Path) -> None:
    """Only the first case verifies."""
    language.place(tmp_path)
    sent = [{**each, "body": base64.b64encode(each["body"]).decode()} for each in CASES]
    assert language.verdicts(tmp_path, sent) == ["true", *["false"] * (len(CASES) - 1)]
