from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select, text

from flowactions_hookspecs import Preview
from flowactions_plugin.egress.signature import SIGNATURE_HEADER, TIMESTAMP_HEADER
from flowactions_plugin.storage.schema import metadata, outbox
from tests.chatting import Adopted
from tests.plugin.nodes.running import Running, a_draft, running
from tests.support import SmallHost, a_walk, development, services_of
from tests.waiting import until

OF_PROCESSES = {"flowactions_workers", "flowactions_statistics", "flowactions_destinations"}


async def rows(run: Running) -> dict[str, int]:
    """Count the rows of every table but those that say how this process does."""
    async with services_of(run.host)._database.read() as connection:
        return {
            name: (await connection.execute(text(f"SELECT count(*) FROM {name}"))).scalar_one()  # noqa: S608
            for name in metadata.tables.keys() - OF_PROCESSES
        }


@pytest.fixture
async def run(database_url: str) -> AsyncIterator[Running]:
    async with running(SmallHost(development(database_url))) as started:
        yield started


def headers_of(preview: Preview) -> list[tuple[str, str]]:
    return [(header.key, header.value) for header in preview.headers]


class TestWebhook:
    @pytest.mark.parametrize("secret", [None, "s3cret"])
    @pytest.mark.parametrize("method", ["POST", "put", "GET"])
    async def test_what_is_shown_is_what_leaves(self, run: Running, method: str, secret: str | None) -> None:
        """Method, URL, headers in their order and body are those of the request that a walk then sends."""
        run.host.secret = secret
        config: dict[str, Any] = {
            "webhookUrl": f" {run.receiver.url}?a={{{{userId}}}} ",
            "webhookMethod": method,
            "webhookSecret": secret,
            "webhookBody": '{"user": {{userId}}, "n": 1.10, "é": "{{content}}"}',
            "webhookHeaders": [
                {"key": "X-Said", "value": "{{content}}\n"},
                {"key": "Host", "value": "evil"},
                {"key": "x-b", "value": "1"},
            ],
        }
        draft, walk = a_draft("webhook", **config), a_walk(user_id='a"b', content="hé\x00llo")
        before = await rows(run)
        preview = await run.actions.preview(draft, walk)
        assert await rows(run) == before
        assert run.receiver.requests == []
        result = await run.actions.reach(walk, draft.node)
        await until(lambda: bool(run.receiver.requests))
        (request,) = run.receiver.requests
        sent = [
            (name, value.decode()) for name, value in request.headers if name not in {"host", "content-length"}
        ]
        shown = [(name.lower(), value) for name, value in headers_of(preview)]
        assert [name for name, _ in shown] == [name for name, _ in sent]
        replaced = {TIMESTAMP_HEADER: "…", SIGNATURE_HEADER: "v1,…"}
        assert shown == [(name, replaced.get(name, value)) for name, value in sent]
        assert preview.method == request.line.partition(" ")[0]
        assert preview.body == (request.body.decode() if method != "GET" else None)
        async with services_of(run.host)._database.read() as connection:
            row = (await connection.execute(select(outbox).where(outbox.c.id == result.delivery_id))).one()
        assert preview.url == row.url
        assert [(name.lower(), value) for name, value in json.loads(row.headers)] == shown[
            : -2 if secret else -1
        ]

    async def test_credentials_are_masked(self, run: Running) -> None:
        """Header values and query parameters that are credentials are not shown, and neither is the secret."""
        preview = await run.actions.preview(
            a_draft(
                "webhook",
                webhookUrl=f"{run.receiver.url}?token=QUERY&a=b",
                webhookSecret="SIGNING",
                webhookHeaders=[
                    {"key": "X-Api-Key", "value": "HEADER"},
                    {"key": "x-other", "value": "Bearer SCHEME"},
                    {"key": "x-plain", "value": "shown"},
                ],
            ),
            a_walk(),
        )
        assert preview.url == f"{run.receiver.url}?token=…&a=b"
        assert dict(headers_of(preview))["X-Api-Key"] == dict(headers_of(preview))["x-other"] == "…"
        assert dict(headers_of(preview))["x-plain"] == "shown"
        assert not any(
            each in repr(preview) + str(headers_of(preview))
            for each in ("QUERY", "SIGNING", "HEADER", "SCHEME")
        )

    @pytest.mark.parametrize(
        ("config", "code", "kept"),
        [
            ({"webhookUrl": "http://169.254.169.254/x"}, "blocked_url", {"method", "url", "headers", "body"}),
            ({"webhookUrl": ""}, "missing_url", {"method", "headers", "body"}),
            ({"webhookBody": "nope"}, "invalid_body", {"method", "url"}),
            ({"webhookHeaders": [{"key": "a", "value": "x" * 9000}]}, "headers_too_large", {"method", "url"}),
        ],
    )
    async def test_what_can_be_shown_is_shown_beside_the_problems(
        self, run: Running, config: dict[str, Any], code: str, kept: set[str]
    ) -> None:
        """A node that would be skipped still shows the parts that are right."""
        draft = a_draft("webhook", **{"webhookUrl": run.receiver.url, "webhookBody": "{}", **config})
        preview = await run.actions.preview(draft, a_walk())
        assert [each.code for each in preview.problems if each.severity == "error"] == [code]
        assert {name for name in ("method", "url", "headers", "body") if getattr(preview, name)} == kept

    async def test_problems_are_those_of_the_walk(self, run: Running) -> None:
        """With the values of this walk, a body may be too large that is not with others."""
        draft = a_draft("webhook", webhookUrl=run.receiver.url, webhookBody='"{{content}}"')
        assert (await run.actions.preview(draft, a_walk())).problems == ()
        preview = await run.actions.preview(draft, a_walk(content="x" * (1 << 20)))
        assert [each.code for each in preview.problems] == ["body_too_large"]


SECRET = st.text(alphabet="SECRT0123456789", min_size=12)


async def test_no_secret_ever_appears(run: Running) -> None:
    """Whatever else is in a config, neither its signing secret nor a header's credential is in the preview."""
    cases: list[tuple[str, dict[str, Any]]] = []

    @given(
        SECRET,
        st.sampled_from(["http://127.0.0.1/a", "http://127.0.0.1/a b", "", "nope", 5]),
        st.sampled_from(["{}", "nope", '"{{content}}"', "", None, 7]),
        st.sampled_from(["authorization", "x-api-key", "Cookie", "x-token", "my-secret", "x y-key"]),
        st.sampled_from(["POST", "GET", "a b", 3]),
        st.sampled_from(["{}", "Bearer {}", "{}\n", "{{{{content}}}}{}"]),
    )
    @settings(max_examples=60, deadline=None, database=None)
    def collect(secret: str, url: Any, body: Any, key: str, method: Any, form: str) -> None:
        header = {"key": key, "value": form.format(secret)}
        config = {"webhookUrl": url, "webhookBody": body, "webhookMethod": method, "webhookHeaders": [header]}
        cases.append((secret, {**config, "webhookSecret": secret}))

    collect()
    for secret, config in cases:
        preview = await run.actions.preview(a_draft("webhook", **config), a_walk())
        problems = await run.actions.check(a_draft("webhook", **config))
        assert secret not in f"{preview!r}{headers_of(preview)}{problems!r}"


class TestChat:
    @pytest.mark.parametrize(
        ("config", "content"),
        [
            (
                {"chatChannelId": " C00ORDERS ", "chatMessageText": " *{{userId}}*: {{content}} "},
                "<!channel> & b",
            ),
            ({"chatChannelId": "C00ORDERS", "chatMessageText": "{{content}}"}, "&" * 3000),
            ({"chatActionType": "dm", "chatUserId": "U000GRACE", "chatMessageText": "hi {{name}}"}, "x"),
        ],
    )
    async def test_what_is_shown_is_what_is_posted(
        self, chat: Adopted, config: dict[str, Any], content: str
    ) -> None:
        """Target and text are those that the provider then gets, escaped and cut; nothing is posted before."""
        draft = a_draft("chat_message", **config)
        preview = await chat.actions.preview(draft, a_walk(content=content))
        assert chat.provider.calls == []
        assert preview.target == (config.get("chatUserId") or config["chatChannelId"]).strip()
        await chat.actions.reach(a_walk(content=content), draft.node)
        assert preview.text == chat.texts[0][1]

    async def test_problems_are_shown_beside_what_there_is(self, chat: Adopted) -> None:
        """An empty message has no text, and says so."""
        draft = a_draft("chat_message", chatMessageText="{{content}}")
        preview = await chat.actions.preview(draft, a_walk(content=" "))
        assert (preview.target, preview.text) == (None, None)
        assert {each.code for each in preview.problems} == {"missing_target", "empty_message"}
