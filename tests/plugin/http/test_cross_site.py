"""Requests of other sites' pages are refused."""

from __future__ import annotations

import pytest

from flowactions_plugin.http.auth import is_cross_site
from tests.chatting import ChatHost
from tests.rings import sampled
from tests.routes import (
    CHANGING,
    ID,
    LOGIC,
    REPLAY,
    VALID,
)

APP = "https://app.example.com"


def fetch(scheme: str = "http", **read: str) -> dict[str, str]:
    names = {name: f"sec-fetch-{name}" for name in ("site", "mode", "dest")}
    return {names.get(name, name): value for name, value in read.items()} | {"scheme": scheme}


class TestCrossSite:
    @pytest.mark.parametrize(
        ("headers", "refused"),
        [
            (fetch(host="host"), False),
            (fetch(site="same-origin", host="host"), False),
            (fetch(site="none", host="host"), False),
            (fetch(site="same-site", host="host"), True),
            (fetch(site="cross-site", host="host"), True),
            (fetch(site="Same-Origin,cross-site", host="host"), True),
            (fetch(site="same-origin", origin="https://evil.example", host="host"), False),
            (fetch(site="cross-site", origin="https://host", host="host"), True),
            (fetch(site="cross-site", origin=APP, host="host"), False),
            (fetch(site="same-site", origin="HTTPS://APP.example.com:443", host="host"), False),
            (fetch(origin=APP, host="host"), False),
            (fetch(origin="http://app.example.com", host="host"), True),
            (fetch(origin="https://app.example.com.evil.example", host="host"), True),
            (fetch(origin="null", host="host"), True),
            (fetch(origin="", host="host"), True),
            (fetch(origin="https://evil.example", host="host"), True),
            (fetch(origin="http://host", host="host"), False),
            (fetch(origin="https://host", host="host"), False),
            (fetch(origin="https://host", host="HOST:443"), False),
            (fetch(origin="http://host:8000", host="host:8000"), False),
            (fetch(origin="http://host:8001", host="host:8000"), True),
            (fetch(origin="http://localhost:8000", host="127.0.0.1:8000"), True),
            (fetch(origin="http://host", host="host", scheme="https"), True),
            (fetch(origin="http://host"), True),
            (fetch(origin="http://[::1]:80", host="[::1]"), False),
            (fetch(site="cross-site", mode="navigate", dest="document", host="host"), True),
        ],
    )
    def test_sec_fetch_site_decides_before_origin(self, headers: dict[str, str], *, refused: bool) -> None:
        """Without both, the request is not from a browser."""
        assert is_cross_site(headers, {APP}) is refused

    @pytest.mark.parametrize(
        ("headers", "refused"),
        [
            (fetch(site="cross-site", mode="navigate", dest="document"), False),
            (fetch(site="same-site", mode="navigate", dest="document"), False),
            (fetch(site="cross-site", mode="navigate", dest="iframe"), True),
            (fetch(site="cross-site", mode="no-cors", dest="image"), True),
            (fetch(site="cross-site", mode="cors", dest="empty", origin="https://evil.example"), True),
        ],
    )
    def test_a_link_of_another_site_may_start_an_install(
        self, headers: dict[str, str], *, refused: bool
    ) -> None:
        """An embedded image or frame may not."""
        assert is_cross_site(headers, {APP}, navigable=True) is refused

    @sampled(
        "headers",
        [
            {"sec-fetch-site": "cross-site"},
            {"sec-fetch-site": "same-site"},
            {"origin": "https://evil.example"},
            {"origin": "null"},
            {"sec-fetch-site": "cross-site", "authorization": "Basic YTpi"},
            {"sec-fetch-site": "cross-site", "authorization": "Negotiate YTpi"},
            {"sec-fetch-site": "cross-site", "authorization": "Bearer"},
            {"origin": "https://evil.example", "authorization": "Basic YTpi"},
        ],
        size=4,
    )
    async def test_every_route_that_changes_something_refuses_cross_site_requests(
        self, run: ChatHost, headers: dict[str, str]
    ) -> None:
        """403, with a body and without, and with credentials that a browser sends by itself (§5.1)."""
        for route in CHANGING:
            for body in (None, VALID.get(route.path)):
                answer = await run.browser.request(route.method, route.path, json=body, headers=headers)
                assert (answer.status_code, answer.json()["code"]) == (403, "cross_site"), route
        assert await run.card() is not None

    @sampled(
        "headers",
        [
            {},
            {"sec-fetch-site": "same-origin"},
            {"sec-fetch-site": "cross-site", "origin": APP},
            {"sec-fetch-site": "same-site", "origin": "http://host"},  # BACKEND_PUBLIC_URL's
            {"origin": "http://host"},
            {"sec-fetch-site": "cross-site", "authorization": "Bearer t"},
            {"origin": "https://evil.example", "authorization": "bearer t"},
        ],
        size=4,
    )
    async def test_the_dashboards_pages_and_backends_are_accepted(
        self, run: ChatHost, headers: dict[str, str]
    ) -> None:
        """Same origin, allowed origins, tokens, and clients that are not browsers."""
        assert (await run.browser.post(REPLAY, json={"all": True}, headers=headers)).status_code == 202
        assert (await run.browser.post(f"/v1/webhooks/outbox/{ID}/retry", headers=headers)).status_code == 404
        assert (await run.browser.delete("/integrations/chat/connection", headers=headers)).status_code == 204

    async def test_reading_signed_and_backend_routes_accept_cross_site_requests(self, run: ChatHost) -> None:
        """Another site's page cannot read an answer, and cannot sign."""
        foreign = {"sec-fetch-site": "cross-site", "origin": "https://evil.example"}
        assert (await run.browser.get("/v1/webhooks/outbox", headers=foreign)).status_code == 200
        assert (await run.browser.post(LOGIC, json=VALID[LOGIC], headers=foreign)).status_code == 202
        for path in ("/webhooks/auth", "/integrations/chat/events"):
            assert (await run.browser.post(path, headers=foreign)).status_code == 401
        ended = await run.browser.get("/integrations/chat/callback?error=access_denied", headers=foreign)
        assert ended.status_code == 303
