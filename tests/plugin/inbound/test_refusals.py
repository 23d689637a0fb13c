"""What is logged about refused requests."""

from __future__ import annotations

import json
import re
import time

import pytest

from flowactions_plugin.http.problems import Problem
from flowactions_plugin.inbound.requests import NotAuthentic
from flowactions_plugin.inbound.routes import MOST_RECORDED, Intake
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage.database import Database
from flowactions_plugin.telemetry.telemetry import Telemetry
from tests.auth_provider import CREATED, NEW, OLD, OTHER, Running, signed


class TestRefusals:
    """The log says why a request was refused; the answer does not."""

    @pytest.mark.parametrize(
        ("change", "at", "secret", "said"),
        [
            ({"svix-id": None, "svix-signature": None}, 0, NEW, "svix-id and svix-signature missing"),
            ({"svix-timestamp": "now"}, 0, NEW, "the id or the timestamp does not have the scheme's form"),
            (
                {},
                -4000,
                OLD,
                "s in the past, more than five minutes; the signature fits: compare this machine's clock",
            ),
            (
                {},
                4000,
                NEW,
                "s in the future, more than five minutes; the signature fits: compare this machine's clock",
            ),
            ({}, -4000, OTHER, "s in the past, more than five minutes; the signature does not fit either"),
            ({}, 0, OTHER, "the signature does not fit any of the 2 secrets of AUTH_WEBHOOK_SIGNING_SECRET"),
        ],
    )
    async def test_each_cause_is_logged_and_not_answered(
        self,
        run: Running,
        change: dict[str, str | None],
        at: int,
        secret: str,
        said: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        """A wrong secret and a clock that is off are told apart, and no secret or signature is written."""
        body = json.dumps(CREATED).encode()
        headers = {**signed(body, secret, at=time.time() + at), **change}
        signature = str(headers["svix-signature"])
        sent = [(name, value.encode("latin-1")) for name, value in headers.items() if value is not None]
        answer = await run.client.post("/webhooks/auth", content=body, headers=sent)  # type: ignore[arg-type]
        assert answer.json()["detail"] == "The signature is missing, wrong or too old."
        (line,) = [record.getMessage() for record in caplog.records if record.name == "flowactions.auth_events"]
        assert line.startswith("POST /webhooks/auth refused: ")
        assert said in line
        seconds = re.search(r"(\d+) s in", line)
        assert seconds is None or abs(int(seconds[1]) - 4000) < 60
        for value in (signature, NEW, OLD, OTHER):
            assert value not in line
            assert value.removeprefix("whsec_") not in line

    async def test_refusals_that_are_not_logged_are_counted(
        self, caplog: pytest.LogCaptureFixture, database_url: str
    ) -> None:
        """So they cannot fill the log. An hour later, the next line of that cause has their number; others have their own."""
        times = iter([*[0.0] * (MOST_RECORDED + 3), 3600.0])
        async with Database(read_settings({"FLOWACTIONS_DATABASE_URL": database_url}).database_url) as database:
            intake = Intake(database, Telemetry(), "auth", "flowactions.auth_events", "/x", times.__next__)
            for cause in (*["signature"] * (MOST_RECORDED + 2), "headers", "signature"):
                with pytest.raises(Problem):
                    async with intake.refusing():
                        raise NotAuthentic(cause, "no fit")
        *before, last = [
            record.getMessage() for record in caplog.records if record.name == "flowactions.auth_events"
        ]
        assert before == ["POST /x refused: no fit"] * (MOST_RECORDED + 1)
        assert last == "POST /x refused: no fit (2 more for this cause since the last line)"
