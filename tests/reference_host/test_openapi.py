"""The reference host's OpenAPI document, and whether its routes keep to it under whatever is sent."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from flowactions_conformance.demo import Demo, running_demo
from flowactions_hookspecs import OPENAPI_COMPONENTS, FlowActions
from flowactions_plugin.http.problems import TITLES
from tests.routes import HEALTH, PAGES
from tests.support import SmallHost, app_with_routes

pytestmark = pytest.mark.ci

LOGIC = "/v1/agents/{agent_id}/experiences/{experience_id}/logic-webhook"
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)


@pytest.fixture
async def demo(tmp_path: Path) -> AsyncIterator[Demo]:
    async with running_demo({}, tmp_path) as running:
        yield running


async def document(demo: Demo) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=demo.host_url, timeout=300) as client:
        found: dict[str, Any] = (await client.get("/schema/openapi.json")).json()
    return found


def contributed() -> set[tuple[str, str]]:
    """Give method and path of each of the plugin's routes, the pages for people apart."""
    app = app_with_routes(FlowActions.load(SmallHost()))
    return {
        (method.lower(), re.sub(r"\{(\w+):str\}", r"{\1}", route.path))
        for route in app.routes
        for method in getattr(route, "methods", ())
        if method != "OPTIONS" and not route.path.startswith(PAGES)
    }


async def test_every_contributed_route_is_described(
    demo: Demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Summary, description, tag, credentials and problems with examples, for each."""
    monkeypatch.chdir(tmp_path)
    found = await document(demo)
    routes = contributed()
    assert len(routes) >= 15
    schemes = found["components"]["securitySchemes"]
    assert schemes.keys() == (OPENAPI_COMPONENTS.security_schemes or {}).keys()
    for method, path in routes:
        operation = found["paths"][path][method]
        where = f"{method} {path}"
        assert operation["summary"], where
        assert operation["tags"], where
        assert len(operation["description"]) > 20, where
        assert "§" not in operation["description"], where
        named = {name for each in operation.get("security", []) for name in each}
        assert named <= schemes.keys(), where
        assert named or path in {"/integrations/chat/callback", *HEALTH}, where
        if path in HEALTH:
            continue  # it answers with one word
        problems = {status: answer for status, answer in operation["responses"].items() if int(status) >= 400}
        assert "500" in problems, where
        for answer in problems.values():
            content = answer["content"].get("application/problem+json")
            if content is not None:
                codes = {example["value"]["code"] for example in content["examples"].values()}
                assert codes <= TITLES.keys(), where
                assert answer["description"], where
    logic = found["paths"][LOGIC]["post"]
    assert {"202", "204", "400", "401", "404", "429", "503"} <= logic["responses"].keys()
    body = logic["requestBody"]["content"]["application/json"]["schema"]
    properties = found["components"]["schemas"][body["$ref"].rpartition("/")[2]]["properties"]
    assert properties["idempotencyKey"]["maxLength"] == 200
    assert properties["idempotencyKey"]["examples"]


CALLERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "dashboard": ("dashboard_token", ("--exclude-path", LOGIC)),
    "backend": ("api_token", ("--include-path", LOGIC)),
}


@pytest.mark.parametrize("name", CALLERS)
async def test_whatever_is_sent_the_answer_is_in_the_document(demo: Demo, tmp_path: Path, name: str) -> None:
    """schemathesis finds no 500 and no answer outside the document, over a bounded number of cases."""
    caller, which = CALLERS[name]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "schemathesis.cli",
        "run",
        f"{demo.host_url}/schema/openapi.json",
        *which,
        f"--checks={','.join(CHECKS)}",
        "--max-examples=2",
        "--continue-on-failure",
        "--generation-deterministic",
        "--suppress-health-check=all",
        "--no-color",
        f"--header=authorization:Bearer {getattr(demo, caller)}",
        cwd=tmp_path,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    async with asyncio.timeout(600):
        output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()[-20_000:]
    assert re.search(r"[1-9]\d* (passed|generated)", output.decode()), output.decode()[-2000:]
