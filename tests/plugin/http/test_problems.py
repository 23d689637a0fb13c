"""Problem details of every route."""

from __future__ import annotations

import logging

import httpx
import pytest
from litestar import Litestar, get
from litestar.exceptions import HTTPException
from litestar.params import FromPath

from flowactions_plugin.http.problems import HANDLERS, TITLES, Problem
from tests.chatting import ChatHost
from tests.routes import (
    VALID,
    routes_of,
)


class TestProblems:
    async def test_a_title_is_constant_for_its_code(self, caplog: pytest.LogCaptureFixture) -> None:
        """For every code and every exception of Litestar or of a host's guard, with its own status (§7.3)."""
        caplog.set_level(logging.CRITICAL)

        @get("/problem/{code:str}", exception_handlers=HANDLERS)
        async def problem(code: FromPath[str]) -> None:
            raise Problem(code, "What is wrong.")

        @get("/status/{number:int}", exception_handlers=HANDLERS)
        async def status(number: FromPath[int]) -> None:
            raise HTTPException(status_code=number, detail="Of the host's", headers={"X-Own": "1"})

        @get("/defect", exception_handlers=HANDLERS)
        async def defect() -> None:
            raise RecursionError

        app = Litestar([problem, status, defect], logging_config=None, openapi_config=None)
        transport = httpx.ASGITransport(app=app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
            for code, (number, title) in TITLES.items():
                answer = await client.get(f"/problem/{code}")
                told = answer.json()
                assert (answer.status_code, told["status"], told["code"], told["title"]) == (
                    number,
                    number,
                    code,
                    title,
                )
                assert answer.headers["content-type"] == "application/problem+json"
                assert answer.headers["cache-control"] == "no-store"
            for number in (400, 401, 402, 403, 404, 405, 409, 413, 415, 418, 422, 429, 500, 503):
                answer = await client.get(f"/status/{number}")
                told = answer.json()
                assert (answer.status_code, told["status"]) == (number, number)
                assert told["title"] == TITLES[told["code"]][1]
                assert number >= 500 or answer.headers["x-own"] == "1"
            answer = await client.get("/defect")
            assert (answer.status_code, answer.json()["code"]) == (500, "internal_error")
        assert len({title for _, title in TITLES.values()}) == len(TITLES)

    async def test_dashboard_answers_are_not_cached(self, run: ChatHost) -> None:
        """Neither successes nor problems."""
        signed_in = run.host.principal
        for route in routes_of("dashboard"):
            run.host.principal = signed_in
            answers = [await run.browser.request(route.method, route.path, json=VALID.get(route.path))]
            answers.append(await run.browser.request(route.method, route.path, json={"wrong": 1}))
            run.host.principal = None
            answers.append(await run.browser.request(route.method, route.path))
            assert [answer.headers["cache-control"] for answer in answers] == ["no-store"] * 3, route
