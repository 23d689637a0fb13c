"""Bodies are unambiguous JSON, and values are not converted."""

from __future__ import annotations

import json
from itertools import product
from typing import Any

import httpx
import pytest

from tests.chatting import ChatHost
from tests.routes import (
    CHANGING,
    CHANNEL,
    ID,
    JSON,
    LOGIC,
    REPLAY,
    SEND,
    STRANGE_JSON,
    VALID,
    WITH_BODY,
)

NOT_JSON = [
    None,
    "text/plain",
    "text/plain; application/json",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "application/jsonp",
    "application/problem+json",
    "text/plain, application/json",
]


class TestBodies:
    @pytest.mark.parametrize(("method", "path"), WITH_BODY)
    async def test_ambiguous_json_is_refused(self, run: ChatHost, method: str, path: str) -> None:
        """400 on every route with a body, and never a 500."""
        for body in STRANGE_JSON:
            answer = await run.browser.request(method, path, content=body, headers=JSON)
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), body[:24]

    async def test_ambiguous_json_is_refused_in_any_field(self, run: ChatHost) -> None:
        """Repeated names on every route, and in fields that would be ignored."""
        for method, path in WITH_BODY:
            valid = json.dumps(VALID[path])
            name, value = next(iter(VALID[path].items()))
            twice = f"{valid[:-1]}, {json.dumps(name)}: {json.dumps(value)}}}"
            answer = await run.browser.request(method, path, content=twice, headers=JSON)
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), path
        for strange in ('{"x":1,"x":1}', "NaN", "1e400", '"\\ud800"', '["\\udc00 x"]', "9" * 5000, "[" * 9000):
            inside = f'{json.dumps(VALID[LOGIC])[:-1]}, "later": {strange}}}'
            answer = await run.browser.post(LOGIC, content=inside, headers=JSON)
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), strange[:9]

    @pytest.mark.parametrize(("method", "path"), WITH_BODY)
    async def test_a_missing_body_is_answered_with_an_example(
        self, run: ChatHost, method: str, path: str
    ) -> None:
        """With a content type and without."""
        for headers in ({}, JSON):
            answer = await run.browser.request(method, path, headers=headers)
            assert answer.status_code == 400
            assert answer.json()["detail"].startswith("The request has no body. Send a JSON object")

    async def test_a_dashboard_route_accepts_only_json(self, run: ChatHost) -> None:
        """415 for any body that a form or a simple fetch of another site can send, also where none is required."""
        for route, kind in product(CHANGING, NOT_JSON):
            headers = {} if kind is None else {"content-type": kind}
            answer = await run.browser.request(route.method, route.path, content=b"{}", headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type"), (route, kind)

    async def test_json_is_accepted(self, run: ChatHost) -> None:
        """In all spellings of its type."""
        for method, path in (("PUT", CHANNEL), *WITH_BODY):
            content = httpx.Request("POST", "http://x", json=VALID[path]).content
            for kind in ("application/json", "Application/JSON; charset=utf-8", "application/json;"):
                answer = await run.browser.request(
                    method, path, content=content, headers={"content-type": kind}
                )
                assert answer.status_code in {200, 202, 204}, (path, kind)

    @pytest.mark.parametrize(("path", "status"), [(LOGIC, 202), (REPLAY, 202)])
    async def test_backends_and_bearer_tokens_may_omit_the_type(
        self, run: ChatHost, path: str, status: int
    ) -> None:
        """No page of another site can send a token. A different type is refused."""
        content = httpx.Request("POST", "http://x", json=VALID[path]).content
        token = {"authorization": "Bearer t"}
        wrong = {**token, "content-type": "text/plain"}
        assert (await run.browser.post(path, content=content, headers=wrong)).status_code == 415
        assert (await run.browser.post(path, content=content, headers=token)).status_code == status

    @pytest.mark.parametrize(("method", "path"), WITH_BODY)
    async def test_a_body_over_64_kib_is_a_413(self, run: ChatHost, method: str, path: str) -> None:
        """Smaller ones are read (§4)."""
        for size, status in ((64 * 1024, 400), (64 * 1024 + 1, 413)):
            answer = await run.browser.request(method, path, content=b" " * size, headers=JSON)
            assert answer.status_code == status

    async def test_values_are_not_converted(self, run: ChatHost) -> None:
        """The answer names the field as the client wrote it (§4)."""
        cases: list[tuple[str, dict[str, Any], str]] = [
            (REPLAY, {"ids": "null", "all": False}, "ids"),
            (REPLAY, {"ids": ["x"], "all": False}, "ids[0]"),
            (REPLAY, {"ids": [ID] * 1001, "all": False}, "ids"),
            (REPLAY, {"rate": 0}, "rate"),
            (REPLAY, {"agentId": "\0"}, "agentId"),
            (REPLAY, {"ids": [], "all": False}, "ids"),
            (REPLAY, {"ids": [ID, 7]}, "ids[1]"),
            (REPLAY, {"all": "true"}, "all"),
            (REPLAY, {"all": 1}, "all"),
            (REPLAY, {"all": None}, "all"),
            (REPLAY, {"all": False}, "all"),
            (REPLAY, {"agentId": "a"}, "all"),
            (REPLAY, {"ids": [ID]}, "all"),
            (REPLAY, {"agentId": ""}, "agentId"),
            (REPLAY, {"limit": 1.0}, "limit"),
            (REPLAY, {"limit": "1"}, "limit"),
            (REPLAY, {"resetAttempts": 0}, "resetAttempts"),
            (REPLAY, {"nonsense": 1}, "nonsense"),
            *(
                (REPLAY, {name: value}, name)
                for name in ("finishedFrom", "finishedBefore")
                for value in ("2030", 2030, 2030.0, "2030-01-01", "2030-01-01T00:00:00", "null", True, "")
            ),
            (CHANNEL, {"channelId": 7}, "channelId"),
            (CHANNEL, {"channel": "C"}, "channel"),
            (SEND, {"text": 7}, "text"),
            (SEND, {"channel": "C"}, "channel"),
        ]
        for path, change, named in cases:
            method = "PUT" if path == CHANNEL else "POST"
            answer = await run.browser.request(method, path, json={**VALID[path], **change})
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), (path, change)
            assert [error["path"] for error in answer.json()["errors"]] == [named]
            assert "Expected" not in answer.text

    async def test_what_is_no_json_is_told_by_its_place(self, run: ChatHost) -> None:
        """In words of the plugin's own, and not in the decoder's."""
        for body, line, column in ((b"{", 1, 2), (b'{"text": }', 1, 10), (b"{}\n x", 2, 2)):
            answer = await run.browser.post(SEND, content=body, headers=JSON)
            assert answer.json()["detail"] == f"The body is not valid JSON in line {line}, column {column}."
        answer = await run.browser.post(SEND, content=b'{"text": NaN}', headers=JSON)
        assert answer.json()["detail"] == "The body is not valid JSON: NaN is no number."

    async def test_an_answer_names_all_wrong_fields(self, run: ChatHost) -> None:
        """Missing, wrong and unknown ones."""
        answer = await run.browser.post(LOGIC, json={"actionIndex": -1, "source": "x", "nodeId": 7})
        paths = [error["path"] for error in answer.json()["errors"]]
        assert sorted(paths) == ["actionIndex", "idempotencyKey", "nodeId", "source"]
        answer = await run.browser.post(REPLAY, json={"limit": 0, "nonsense": 1})
        assert [error["path"] for error in answer.json()["errors"]] == ["limit", "nonsense"]

    async def test_a_bulk_retry_requires_a_filter_or_all(self, run: ChatHost) -> None:
        """Neither an empty body nor only an option selects everything."""
        for body in ({}, {"resetAttempts": True}, {"ids": None, "agentId": None}):
            answer = await run.browser.post(REPLAY, json=body)
            assert answer.status_code == 400
            (error,) = answer.json()["errors"]
            assert error["path"] == "all"
            assert "set it to true" in error["message"]
