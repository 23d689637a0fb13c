"""Mistakes of receivers: the function of the page says which row of its table each of them is."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from flowactions_conformance.receiver import Receiver
from flowactions_conformance.serving import serve
from tests.docs.fences import ROOT, blocks_of
from tests.receivers.cases import PAGE as TABLE
from tests.receivers.languages import LANGUAGES, events

PAGE = ROOT / "docs" / "how-to" / "signature-does-not-verify.md"
RECEIVING = ROOT / "docs" / "how-to" / "receive-webhooks.md"
CASES = json.loads(TABLE.read_text())


@pytest.fixture(scope="module")
def explain() -> Callable[..., str]:
    namespace: dict[str, Any] = {}
    for each in (
        LANGUAGES[0].function(),
        blocks_of(PAGE)[0].text,
    ):  # pasted below the one for Python, as the page says
        exec(each, namespace)  # noqa: S102  the project's own documents
    found: Callable[..., str] = namespace["explain"]
    return found


def test_the_function_names_the_row_of_each_mistake(explain: Callable[..., str]) -> None:
    """It takes headers and bodies as `verify` does, events included; no row is without a mistake that is tried."""
    mistakes = [each for each in CASES if "row" in each]
    told = [
        (each["name"], explain(each["secrets"], *request, now=each["now"]))
        for each in mistakes
        for request in ((each["headers"], base64.b64decode(each["body"])), *zip(events(each), strict=True))
    ]
    assert [(name, row) for name, row in told if name.partition(":")[0] != row] == []
    table = PAGE.read_text().partition("## The table\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \|", table, re.MULTILINE)[1:]
    assert rows == [*dict.fromkeys(each["row"] for each in mistakes)]


def test_the_function_calls_right_what_verifies_and_nothing_else(explain: Callable[..., str]) -> None:
    """Of all requests in the table of cases, hostile ones included."""
    for each in CASES:
        row = explain(each["secrets"], each["headers"], base64.b64decode(each["body"]), each["now"])
        assert (row == "verifies") == each["verified"], each["name"]


@pytest.mark.parametrize("secret", ["s3cret", "another"])
async def test_a_receiver_can_be_tried_without_the_sender(secret: str) -> None:
    """The lines of the page send a request that verifies with the secret of the page, and with no other."""
    if not shutil.which("openssl") or not shutil.which("curl"):
        pytest.skip("the page's lines need openssl and curl")
    (lines,) = (each.text for each in blocks_of(RECEIVING) if each.language == "sh")
    receiver = Receiver(secret)
    async with serve(receiver.app) as url:
        there = lines.replace("http://127.0.0.1:8000/orders", f"{url}/hooks/orders")
        shell = await asyncio.create_subprocess_exec("sh", "-euc", there, stdout=asyncio.subprocess.PIPE)
        out, _ = await shell.communicate()
    (arrival,) = receiver.arrivals
    assert (arrival.body, arrival.signature) == (
        '{"order": 1}',
        "verified" if secret == "s3cret" else "wrong",
    ), out
