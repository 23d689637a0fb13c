"""Query parameters are checked strictly."""

from __future__ import annotations

import pytest

from flowactions_plugin.http.problems import Problem
from flowactions_plugin.http.strict import check_query
from tests.chatting import ChatHost
from tests.routes import (
    REPLAY,
)


class TestQueries:
    async def test_a_list_refuses_unknown_repeated_and_invalid_parameters(self, run: ChatHost) -> None:
        """Each is named."""
        cases = [
            ("limit=0", "limit"),
            ("limit=1000", "limit"),
            ("limit=1.0", "limit"),
            ("limit=%D9%A3", "limit"),
            ("limit=+1", "limit"),
            ("limit=1_0", "limit"),
            ("limit=", "limit"),
            ("limit=1&limit=2", "limit"),
            ("limit=999999999999999999999", "limit"),
            ("status=", "status"),
            ("status=lost", "status"),
            ("status=dead&status=dead", "status"),
            ("agentId=", "agentId"),
            ("cursor=", "cursor"),
            ("nonsense=1", "nonsense"),
            ("agentid=a", "agentid"),
            ("agent_id=a", "agent_id"),
            ("finishedFrom=2030", "finishedFrom"),
            ("finishedFrom=2030-01-01", "finishedFrom"),
            ("finishedFrom=2030-01-01T00:00:00", "finishedFrom"),
            ("finishedFrom=2030-01-01T00:00:00+01:00", "finishedFrom"),
            ("finishedBefore=0", "finishedBefore"),
            ("agentId=%00", "agentId"),
            ("agentId=%FF", None),
            ("flag", "flag"),
        ]
        for query, named in cases:
            answer = await run.browser.get(f"/v1/webhooks/outbox?{query}")
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), query
            assert [error["path"] for error in answer.json().get("errors", [])] == ([named] if named else [])

    def test_a_query_that_is_not_percent_encoded_is_refused(self) -> None:
        """Bytes beyond ASCII are ambiguous in a URL."""
        for raw in (b"agentId=\xe9", "agentId=é".encode()):
            with pytest.raises(Problem):
                check_query(raw, {"agentId": lambda _: None})

    def test_an_answer_names_fifty_mistakes_at_the_most(self) -> None:
        """Whoever makes more gets no longer answer."""
        with pytest.raises(Problem) as refused:
            check_query("&".join(f"wrong{number}=1" for number in range(60)).encode(), {})
        assert len(refused.value.errors or ()) == 50

    async def test_a_bulk_retry_refuses_a_query(self, run: ChatHost) -> None:
        """So that a filter in the query does not select everything."""
        answer = await run.browser.post(f"{REPLAY}?agentId=a", json={"all": True})
        assert [error["path"] for error in answer.json()["errors"]] == ["agentId"]

    async def test_valid_parameters_are_accepted(self, run: ChatHost) -> None:
        """Percent-encoded, with any time zone."""
        query = {"agentId": "é", "finishedFrom": "2020-01-01T00:00:00.5+01:00", "limit": "1", "status": "dead"}
        assert (await run.browser.get("/v1/webhooks/outbox", params=query)).status_code == 200
