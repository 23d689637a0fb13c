"""Problem details of every route."""

from __future__ import annotations

import logging
from typing import Annotated

import httpx
import pytest
from litestar import Litestar, get
from litestar.exceptions import HTTPException
from litestar.params import FromPath, QueryParameter

from flowactions_plugin.http.problems import HANDLERS, LOOK_IN_LOG, TITLES, Problem
from tests.chatting import ChatHost
from tests.routes import (
    VALID,
    routes_of,
)

OF_STATUS = dict.fromkeys((400, 402, 409, 418, 422), "invalid_request") | {
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media_type",
    429: "rate_limited",
    500: "internal_error",
    503: "internal_error",
}


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

        @get("/list", exception_handlers=HANDLERS)
        async def listed(page_size: Annotated[int, QueryParameter(name="pageSize")]) -> None: ...

        @get("/defect", exception_handlers=HANDLERS)
        async def defect() -> None:
            raise RecursionError

        app = Litestar([problem, status, listed, defect], logging_config=None, openapi_config=None)
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
            for number, code in OF_STATUS.items():
                answer = await client.get(f"/status/{number}")
                told = answer.json()
                assert (answer.status_code, told["status"], told["code"]) == (number, number, code)
                assert told["title"] == TITLES[code][1]
                details = {413: "Send less at once.", 500: LOOK_IN_LOG, 503: LOOK_IN_LOG}
                assert told["detail"] == details.get(number, "Of the host's")
                assert number >= 500 or answer.headers["x-own"] == "1"
            answer = await client.get("/list?pageSize=x")
            assert answer.json()["errors"] == [{"path": "pageSize", "message": "must be a whole number"}]
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
