"""The session of the pages, for dashboards with bearer tokens."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from flowactions_plugin.errors import NotConfigured
from flowactions_plugin.pages.sessions import COOKIE, SESSION_SECONDS, TOKEN_BYTES, Sessions
from flowactions_plugin.storage.sealing import KeyRing
from tests.plugin.pages.conftest import FORM, KEY, ROOT, SAME_ORIGIN, Site, a_site
from tests.support import transport_of

TOKEN = "dashboard-token-that-nobody-may-see"


async def begin(client: httpx.AsyncClient, token: str = TOKEN, **headers: str) -> httpx.Response:
    return await client.post(f"{ROOT}/session", headers={"authorization": f"Bearer {token}", **headers})


async def attributes_of_both(client: httpx.AsyncClient) -> set[str]:
    """Begin a session and end it; give the cookie's attributes, which are the same but for how long it lives."""
    set_to = attributes(await begin(client))
    ended = await client.post(f"{ROOT}/sign-out", headers={**SAME_ORIGIN, **FORM})
    assert ended.status_code == 303
    assert f"max-age={SESSION_SECONDS}" in set_to
    kept = set_to - {f"max-age={SESSION_SECONDS}"}
    assert attributes(ended) == kept | {"max-age=0"}
    return kept


def attributes(answer: httpx.Response) -> set[str]:
    return {part.strip().lower() for part in answer.headers["set-cookie"].split(";")[1:]}


class TestSessions:
    def test_a_session_gives_its_token_back(self) -> None:
        """For half an hour, and not longer."""
        now = [1000.0]
        sessions = Sessions(lambda: KeyRing([b"k" * 32]), lambda: now[0])
        value = sessions.seal("a token with spaces")
        assert sessions.open(value) == "a token with spaces"
        now[0] += SESSION_SECONDS - 1
        assert sessions.open(value) == "a token with spaces"
        now[0] += 1
        assert sessions.open(value) is None

    def test_a_key_that_was_rotated_out_of_first_place_still_opens(self) -> None:
        """And one that is gone does not."""
        old, new = b"o" * 32, b"n" * 32
        value = Sessions(lambda: KeyRing([old]), lambda: 0).seal("t")
        assert Sessions(lambda: KeyRing([new, old]), lambda: 0).open(value) == "t"
        assert Sessions(lambda: KeyRing([new]), lambda: 0).open(value) is None

    def test_nothing_else_opens(self) -> None:
        """Values of any form, altered ones, and sealed values of another purpose."""
        ring = KeyRing([b"k" * 32])
        sessions = Sessions(lambda: ring, lambda: 0)
        value = sessions.seal("t")
        altered = value[:-2] + ("AA" if value[-2:] != "AA" else "BB")
        for bad in (None, "", "x", "é", "=", "A" * 5000, value[:20], altered, value + "A", "\x00"):
            assert sessions.open(bad) is None, bad

    def test_without_a_key_nothing_is_a_session(self) -> None:
        """On a process that has none."""

        def no_keys() -> KeyRing:
            raise NotConfigured("FLOWACTIONS_ENCRYPTION_KEYS is not set")

        value = Sessions(lambda: KeyRing([b"k" * 32]), lambda: 0).seal("t")
        assert Sessions(no_keys, lambda: 0).open(value) is None


class TestRoute:
    async def test_a_bearer_becomes_a_cookie_for_the_pages_alone(self, site: Site) -> None:
        """`HttpOnly; SameSite=Strict`, without a path, so that the browser takes the folder of the pages."""
        site.host.token = TOKEN
        assert (await site.get()).status_code == 401
        answer = await begin(site.browser)
        assert answer.status_code == 204
        cookie = answer.headers["set-cookie"]
        assert attributes(answer) == {"httponly", "samesite=strict", f"max-age={SESSION_SECONDS}"}
        assert TOKEN not in cookie
        assert answer.headers["cache-control"] == "no-store"
        assert (await site.get()).status_code == 200
        assert (await site.get("/deliveries")).status_code == 200
        (kept,) = site.browser.cookies.jar
        assert kept.path == ROOT
        assert (await site.browser.get("/v1/webhooks/outbox")).status_code == 401

    async def test_the_host_is_asked_at_each_request(self, site: Site) -> None:
        """With the token as if the browser had sent it; once the host does not know it, nobody is signed in."""
        site.host.token = TOKEN
        await begin(site.browser)
        assert (await site.get()).status_code == 200
        asked = site.host.asked[-1]
        assert asked.headers["authorization"] == f"Bearer {TOKEN}"
        assert (b"authorization", f"Bearer {TOKEN}".encode()) in asked.scope["headers"]
        site.host.token = "another"
        assert (await site.get()).status_code == 401

    async def test_a_request_of_its_own_is_taken_as_it_is(self, site: Site) -> None:
        """One with a header of its own, and one whose session the host no longer knows."""
        site.host.token = TOKEN
        await begin(site.browser)
        site.host.asked.clear()
        assert (await site.get(headers={"authorization": "Bearer other"})).status_code == 401
        sent = {
            value
            for each in site.host.asked
            for name, value in each.scope["headers"]
            if name == b"authorization"
        }
        assert sent == {b"Bearer other"}
        site.host.token = None  # it knows people by a cookie of its own now
        assert (await site.get()).status_code == 200

    async def test_what_is_no_session_is_refused(self, site: Site) -> None:
        """Nothing, another scheme, a token that the host does not know, one that no cookie holds."""
        site.host.token = TOKEN
        for headers in ({}, {"authorization": "Basic eDp5"}, {"authorization": "Bearer "}):
            answer = await site.browser.post(f"{ROOT}/session", headers=headers)
            assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
        assert (await begin(site.browser, "wrong")).status_code == 401
        site.host.token = "x" * (TOKEN_BYTES + 1)
        answer = await begin(site.browser, site.host.token)
        assert (answer.status_code, "longer than a cookie" in answer.json()["detail"]) == (400, True)
        site.host.token = "x" * TOKEN_BYTES
        answer = await begin(site.browser, site.host.token)
        assert answer.status_code == 204
        assert len(answer.headers["set-cookie"].partition(";")[0]) < 4096

    async def test_signing_out_ends_it(self, site: Site) -> None:
        """The page offers it to who is in a session, and to nobody else."""
        assert "Sign out" not in (await site.get()).text
        site.host.token = TOKEN
        await begin(site.browser)
        assert "Sign out" in (await site.get()).text
        assert await attributes_of_both(site.browser) == {"httponly", "samesite=strict"}
        assert (await site.get()).status_code == 401

    async def test_on_https_the_cookie_is_secure(self, site: Site) -> None:
        """By the scheme of the request, or of ``BACKEND_PUBLIC_URL``."""
        transport = transport_of(site.actions)
        async with httpx.AsyncClient(transport=transport, base_url="https://host") as client:
            assert "secure" in await attributes_of_both(client)

    async def test_behind_a_proxy_the_public_url_says_so(self, sqlite_url: str) -> None:
        """The server sees plain http there."""
        settings = {"FLOWACTIONS_DATABASE_URL": sqlite_url, "BACKEND_PUBLIC_URL": "https://app.example.com"}
        settings |= {"FLOWACTIONS_ENCRYPTION_KEYS": KEY, "FLOWACTIONS_HOST_WORKER": "off"}
        async with a_site(settings) as site:
            assert "secure" in await attributes_of_both(site.browser)

    async def test_without_keys_it_names_the_setting(
        self, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """503; the pages themselves need none."""
        monkeypatch.chdir(tmp_path)
        async with a_site({"FLOWACTIONS_DATABASE_URL": sqlite_url, "FLOWACTIONS_HOST_WORKER": "off"}) as site:
            answer = await begin(site.browser)
            assert (answer.status_code, answer.json()["code"]) == (503, "not_configured")
            assert "FLOWACTIONS_ENCRYPTION_KEYS" in answer.json()["detail"]
            site.browser.cookies.set(COOKIE, "x" * 80)
            assert (await site.get()).status_code == 200

    async def test_neither_log_nor_database_holds_the_token(
        self, site: Site, caplog: pytest.LogCaptureFixture
    ) -> None:
        """Nor a page."""
        caplog.set_level("DEBUG")
        site.host.token = TOKEN
        await begin(site.browser)
        shown = [(await site.get(path)).text for path in ("", "/deliveries", "/audit")]
        assert not any(TOKEN in text for text in (*shown, caplog.text))
