"""Two authors with one flow: the second save is refused, and shows what is saved now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.reference_host.test_reference_host import NEW, Running, running

PATH = "/api/flows/order-placed"


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Running]:
    async with running(tmp_path) as started:
        yield started


def a_flow(name: str = "Mine", **changes: Any) -> dict[str, Any]:
    return {"name": name, "agentId": "acme-support", "kind": "single_shot", "items": [], **changes}


async def save(run: Running, etag: str | None, path: str = PATH, **changes: Any) -> httpx.Response:
    headers = {} if etag is None else {"if-match": etag}
    return await run.client.put(path, json=a_flow(**changes), headers=headers)


async def etag_of(run: Running, path: str = PATH) -> str:
    etag: str = (await run.client.get(path)).headers["etag"]
    return etag


async def test_a_save_over_another_version_is_refused_and_shows_it(run: Running) -> None:
    """The answer holds the flow, its ETag and who has saved it; with that ETag, the next save is taken."""
    opened = await etag_of(run)
    async with httpx.AsyncClient(base_url=run.client.base_url, timeout=300) as olive:
        await olive.post("/login", json={"userId": "olive"})
        theirs = await olive.put(PATH, json=a_flow("Olive's"), headers={"if-match": opened})
    refused = await save(run, opened)
    assert (theirs.status_code, refused.status_code) == (200, 412)
    shown = refused.json()["extra"]
    assert (shown["flow"]["name"], shown["savedBy"]["userName"]) == ("Olive's", "Olive")
    assert refused.headers["etag"] == theirs.headers["etag"] == await etag_of(run) != opened
    taken = await save(run, refused.headers["etag"])
    assert taken.status_code == 200
    assert (await run.client.get(PATH)).json()["data"]["name"] == "Mine"
    assert taken.headers["etag"] == await etag_of(run)


@pytest.mark.parametrize(
    ("etag", "status"), [(None, 428), ('"x"', 412), ("W/{}", 200), ('"x", {}', 200), ("*", 200)]
)
async def test_a_save_names_the_version_that_it_replaces(run: Running, etag: str | None, status: int) -> None:
    """Without a version it is refused; a proxy may have weakened the ETag; the star stands for whatever is there."""
    answer = await save(run, etag and etag.format(await etag_of(run)))
    assert answer.status_code == status
    assert ("If-Match" in answer.text) is (status == 428)
    assert ((await run.client.get(PATH)).json()["data"]["name"] == "Mine") is (status == 200)


async def test_of_saves_at_once_one_is_taken(run: Running) -> None:
    """Also when all of them have read the version before any was written."""
    opened = await etag_of(run)
    answers = await asyncio.gather(*(save(run, opened, name=f"Author {number}") for number in range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] + [412] * 7
    flow = next(answer.json()["data"] for answer in answers if answer.status_code == 200)
    assert (await run.client.get(PATH)).json()["data"] == flow


async def test_a_new_flow_replaces_none(run: Running) -> None:
    """Of two that are made under one id, one is taken; an id of another organization is not there to be seen."""
    made = [await run.client.put("/api/flows/mine", json=a_flow(), headers=NEW) for _ in range(2)]
    assert [answer.status_code for answer in made] == [201, 412]
    async with httpx.AsyncClient(base_url=run.client.base_url, timeout=300) as grace:
        await grace.post("/login", json={"userId": "grace"})
        flow = a_flow("Theirs", agentId="globex-support")
        assert (await grace.put("/api/flows/mine", json=flow, headers=NEW)).status_code == 404
        assert (await grace.put("/api/flows/mine", json=flow, headers={"if-match": "*"})).status_code == 404
    assert (await run.client.get("/api/flows/mine")).json()["data"]["name"] == "Mine"
    assert (await run.client.put("/api/flows/a.b", json=a_flow(), headers=NEW)).status_code == 400


async def test_a_flow_that_somebody_else_has_changed_is_not_deleted(run: Running) -> None:
    """Whoever deletes has seen what it is now."""
    opened = await etag_of(run)
    await save(run, opened)
    assert (await run.client.delete(PATH)).status_code == 428
    assert (await run.client.delete(PATH, headers={"if-match": opened})).status_code == 412
    assert (await run.client.delete(PATH, headers={"if-match": await etag_of(run)})).status_code == 204
    assert (await save(run, opened)).status_code == 404


WITH_BODY = [
    ("PUT", PATH, "name, agentId, kind and items"),
    ("POST", "/login", "userId"),
    ("POST", "/run/flows/order-placed/open", "userId and content"),
    ("POST", "/run/sessions/none/next", "from"),
]


async def test_a_body_that_is_no_json_is_refused_in_words(run: Running) -> None:
    """On each route with a body, for each way to be none: the answer says what to send, and has no word of the framework's."""
    headers = {"if-match": "*", "content-type": "application/json"}
    nones = (b"{", b"nope", b"\xff", b"[]", b'"x"', b"null", b"")
    for (method, path, fields), body in product(WITH_BODY, nones):
        answer = await run.client.request(method, path, content=body, headers=headers)
        assert answer.status_code == 400, (body, answer.text)
        assert answer.json()["detail"].endswith(f"Send a JSON object with {fields}."), body
        for word in ("Validation failed", "malformed", "msgspec", "Expected", "byte"):
            assert word not in answer.text, body


STEP = {"id": "a", "kind": "step"}


WRONG_FLOWS: list[tuple[dict[str, Any], str]] = [
    ({"name": " "}, "Give the flow a name"),
    ({"name": "x" * 201}, "1 to 200 characters"),
    ({"name": "a\0b"}, "Give the flow a name"),
    ({"agentId": "globex-support"}, "which of your agents"),
    ({"agentId": 5}, "which of your agents"),
    ({"kind": "sideways"}, '"single_shot" or "client_paced"'),
    ({"items": 7}, "a list of at most 200"),
    ({"items": [7]}, "a list of at most 200"),
    ({"items": [STEP, {"kind": "step"}]}, "Item 2 of the flow: give it an id"),
    ({"items": [{**STEP, "kind": "x"}]}, "Item 1 of the flow: its kind is"),
    ({"items": [{**STEP, "name": 7}]}, "Item 1 of the flow: its name is a text"),
    ({"items": [{"id": "a", "kind": "action", "config": {}}]}, "an action has a type"),
    ({"items": [{"id": "a", "kind": "action", "type": "webhook"}]}, "an action has a config"),
    ({"items": [STEP, STEP]}, "Two items have the same id"),
    ({"colour": "red"}, "The field 'colour' is not known. Leave it out."),
]


async def test_a_wrong_flow_is_refused_in_words(run: Running) -> None:
    """The answer names the field and what belongs there."""
    for changes, said in WRONG_FLOWS:
        answer = await save(run, "*", **changes)
        assert answer.status_code == 400, changes
        assert said in answer.json()["detail"]
    assert "Validation failed" not in answer.text
