from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flowactions_conformance.chat_provider import Fault
from flowactions_hookspecs import Agent, FlowActions, Node, NodeDraft
from flowactions_plugin.chat.connections import Connections
from flowactions_plugin.chat.service import Chat
from flowactions_plugin.egress.guard import EgressGuard
from flowactions_plugin.nodes import chat_message
from flowactions_plugin.nodes.chat_message import ChatMessageConfig
from flowactions_plugin.nodes.faults import MOST_PROBLEMS, unknown_tokens
from flowactions_plugin.nodes.webhook import WebhookConfig, WebhookNode
from tests.chatting import Adopted
from tests.plugin.nodes.problems import told, webhook
from tests.support import SmallHost, a_walk, development, services_of


def a_draft(kind: str, ask_provider: bool = False, **config: Any) -> NodeDraft:
    node = Node(id="n1", type=kind, config=config)
    return NodeDraft(organization_id="acme", agent_id="agent-1", node=node, ask_provider=ask_provider)


class TestHeaders:
    @pytest.mark.parametrize(
        ("header", "part", "code", "severity"),
        [
            ({"key": "X-Service-Webhook-Id", "value": "x"}, "key", "header_dropped", "warning"),
            ({"key": "x-{{userId}}", "value": "x"}, "key", "header_dropped", "warning"),
            ({"key": "x" * 257, "value": "x"}, "key", "header_dropped", "warning"),
            ({"key": " ", "value": "x"}, "key", "header_dropped", "warning"),
            ({"value": "x"}, "key", "header_dropped", "warning"),
            ({"key": "a", "value": "x" * 8193}, "value", "headers_too_large", "error"),
        ],
    )
    def test_each_header_is_told_by_its_own_place(
        self, header: dict[str, Any], part: str, code: str, severity: str
    ) -> None:
        """The index is that of the author's list, also behind what cannot be read."""
        items = [{"key": "ok", "value": "{{userId}}"}, "not a header", header, {"key": "fine", "value": "b"}]
        first, second = webhook(webhookHeaders=items)
        assert told([first]) == [("webhookHeaders", 1, "wrong_type", "warning")]
        assert told([second]) == [("webhookHeaders", 2, part, code, severity)]

    def test_headers_too_large_together_are_an_error_of_the_list(self) -> None:
        """No single one of them is too large."""
        items = [{"key": f"x-{number}", "value": "v" * 8000} for number in range(9)]
        assert told(webhook(webhookHeaders=items)) == [("webhookHeaders", "headers_too_large", "error")]

    @pytest.mark.parametrize("items", [[], [{}], [{"key": "", "value": " "}], None])
    def test_empty_rows_are_no_problem(self, items: Any) -> None:
        """An editor leaves them behind, and nothing of them is lost."""
        assert webhook(webhookHeaders=items) == []


class TestFields:
    @pytest.mark.parametrize("kind", [WebhookConfig, ChatMessageConfig])
    def test_every_field_of_a_wrong_type_is_told(self, kind: Any) -> None:
        """At its own place, whichever it is."""
        for name in (field.encode_name for field in msgspec.structs.fields(kind)):
            stored: dict[str, Any] = {name: {"an": "object"}}
            problems = webhook(**stored) if kind is WebhookConfig else chat_message.problems(stored)
            assert name in {each.path[0] for each in problems}

    def test_unknown_fields_are_ignored(self) -> None:
        """A host keeps fields of its own beside ours."""
        assert webhook(label="x", position={"x": 1}, webhookURL=5) == []
        assert chat_message.problems({"chatChannelId": "C1", "chatMessageText": "hi", "label": 1}) == ()

    def test_the_number_of_problems_is_bounded_and_errors_come_first(self) -> None:
        """However much is wrong, the answer is short and no error is left out."""
        problems = webhook(webhookHeaders=["x"] * 5000, webhookBody="nope")
        assert len(problems) == MOST_PROBLEMS
        assert problems[0].code == "invalid_body"
        assert len(list(unknown_tokens("{{a}}" * 50_000))) == 1


PIECES = ["{{userId}}", "{{content}}", "{{x}}", '"', "{", "}", ":", '{"a":', "1", "text", "\\", "\n", "é"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=6).map("".join)
ANYTHING = st.one_of(st.none(), st.booleans(), st.integers(), TEXTS, st.lists(TEXTS, max_size=2))
URLS = st.sampled_from(
    [
        "http://127.0.0.1:9/a",
        "https://192.0.2.1/",
        "http://169.254.169.254/",
        "http://10.0.0.1/{{userId}}",
        "",
        "  ",
        "ftp://x",
        "http://a b",
        "http://user@127.0.0.1/",
        "http://127.0.0.1:99999/",
        "http://01.2.3.4/",
    ]
)
HEADER = st.fixed_dictionaries(
    {},
    optional={
        "key": st.one_of(ANYTHING, st.sampled_from(["x-a", "Host", "content-type"])),
        "value": st.one_of(ANYTHING, st.sampled_from(["v" * 8192, "v" * 8193, "{{userId}}"])),
    },
)
WEBHOOK_CONFIGS = st.fixed_dictionaries(
    {"webhookUrl": st.one_of(URLS, URLS, ANYTHING)},
    optional={
        "webhookMethod": st.one_of(st.sampled_from(["POST", "GET", "put", "a b"]), ANYTHING),
        "webhookBody": st.one_of(TEXTS, ANYTHING, st.just("[" + "1," * 700 + "1]")),
        "webhookHeaders": st.one_of(ANYTHING, st.lists(st.one_of(HEADER, ANYTHING), max_size=10)),
        "webhookRetryOnFailure": ANYTHING,
        "webhookContinueOnFailure": ANYTHING,
        "other": ANYTHING,
    },
)
CHAT_CONFIGS = st.fixed_dictionaries(
    {"chatMessageText": st.one_of(TEXTS, ANYTHING)},
    optional={
        "chatActionType": st.one_of(st.sampled_from(["channel", "dm"]), ANYTHING),
        "chatChannelId": st.one_of(
            st.sampled_from(["C00ORDERS", "C00RANDOM", "G000LEADS", "C00000OLD", "CNONE", " C00ORDERS "]),
            ANYTHING,
        ),
        "chatUserId": st.one_of(st.sampled_from(["U000GRACE", "U0000GONE", "U000ROBOT", "UNONE"]), ANYTHING),
        "chatRetryOnFailure": st.just(False),
        "chatContinueOnFailure": ANYTHING,
    },
)


def test_a_webhook_without_errors_is_queued_and_one_with_an_error_is_not(database_url: str) -> None:
    """What `check` says of a config is what `reach` does with it; an error's code is the reason."""
    actions = FlowActions.load(
        SmallHost(development(database_url, FLOWACTIONS_MAX_BODY_BYTES="1024", FLOWACTIONS_HOST_WORKER="off"))
    )

    @given(WEBHOOK_CONFIGS)
    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    def holds(config: dict[str, Any]) -> None:
        node = Node(id="n1", type="webhook", config=config)
        draft = NodeDraft(organization_id="acme", agent_id="agent-1", node=node)
        problems = runner.run(actions.check(draft))
        result = runner.run(actions.reach(a_walk(), node))
        errors = {each.code for each in problems if each.severity == "error"}
        assert (result.status == "queued") == (not errors), problems
        if errors:
            assert result.reason in errors

    lifespan = actions.lifespan(tasks=False)
    with asyncio.Runner(
        loop_factory=asyncio.new_event_loop
    ) as runner:  # ends what a loop that is only closed would leave behind
        runner.run(lifespan.__aenter__())
        try:
            holds()
        finally:
            runner.run(lifespan.__aexit__(None, None, None))


def connections_of(run: Adopted) -> Connections:
    chat = services_of(run.actions.host)._chat
    assert isinstance(chat, Chat)
    return chat.connections


class TestChat:
    async def test_a_message_without_errors_is_sent_and_one_with_an_error_is_not(self, chat: Adopted) -> None:
        """With the provider asked, what `check` says is what `reach` does."""
        examples: list[dict[str, Any]] = []

        @given(CHAT_CONFIGS)
        @settings(max_examples=80, deadline=None, database=None)
        def collect(config: dict[str, Any]) -> None:
            examples.append(config)

        collect()
        for config in examples:
            problems = await chat.actions.check(a_draft("chat_message", ask_provider=True, **config))
            result = await chat.reach(config)
            errors = [each for each in problems if each.severity == "error"]
            assert (result.status == "sent") == (not errors), (config, problems, result)

    @pytest.mark.parametrize(
        ("config", "expected"),
        [
            ({"chatChannelId": "C00ORDERS"}, None),
            ({"chatChannelId": "C00RANDOM"}, ("chatChannelId", "not_in_channel")),
            ({"chatChannelId": "CNONE"}, ("chatChannelId", "channel_not_found")),
            ({"chatActionType": "dm", "chatUserId": "U000GRACE"}, None),
            ({"chatActionType": "dm", "chatUserId": "U0000GONE"}, ("chatUserId", "user_disabled")),
            ({"chatActionType": "dm", "chatUserId": "UNONE"}, ("chatUserId", "user_not_found")),
        ],
    )
    async def test_the_provider_is_asked_about_the_target(
        self, chat: Adopted, config: dict[str, Any], expected: tuple[str, str] | None
    ) -> None:
        """One call, nothing is posted, and the advice is that of a send; not asked for, there is no call at all."""
        draft = a_draft("chat_message", ask_provider=True, chatMessageText="hi", **config)
        problems = await chat.actions.check(draft)
        assert told(problems) == ([] if expected is None else [(*expected, "error")])
        assert chat.provider.calls == ["users.info" if "chatUserId" in config else "conversations.info"]
        assert await chat.actions.check(a_draft("chat_message", chatMessageText="hi", **config)) == ()
        assert len(chat.provider.calls) == 1

    @pytest.mark.parametrize(
        "fault",
        [
            Fault(503, b"<html>down</html>"),
            Fault(200, b'{"ok":false,"error":"missing_scope"}', (("content-type", "application/json"),)),
            Fault(200, b'{"ok":true,"channel":{}}', (("content-type", "application/json"),)),
        ],
    )
    async def test_a_provider_that_fails_is_a_warning(self, chat: Adopted, fault: Fault) -> None:
        """Nobody knows then, so nothing is said to be wrong, and nothing is raised."""
        chat.provider.faults["conversations.info"].append(fault)
        draft = a_draft("chat_message", ask_provider=True, chatChannelId="C00ORDERS", chatMessageText="hi")
        (problem,) = await chat.actions.check(draft)
        assert (problem.code, problem.severity) == ("not_checked", "warning")

    async def test_a_private_channel_that_the_app_cannot_see_may_exist(self, chat: Adopted) -> None:
        """Without the scope to list private channels, one that is not found is a warning."""
        token = chat.provider.state.tokens_of(chat.provider.state.workspaces[0])[0]
        connections = connections_of(chat)
        stored = await connections.existing("acme")
        await connections._store.change_missing_scopes(stored, lambda _: ["groups:read"])
        token.scopes = tuple(scope for scope in token.scopes if scope != "groups:read")
        draft = a_draft("chat_message", ask_provider=True, chatChannelId="GNONE", chatMessageText="hi")
        assert told(await chat.actions.check(draft)) == [("chatChannelId", "channel_not_found", "warning")]

    async def test_a_connection_that_cannot_be_used_is_an_error(self, chat: Adopted) -> None:
        """A revoked token is known without asking; another organization has no connection."""
        connections = connections_of(chat)
        await connections._store.refused(await connections.existing("acme"), "token_revoked")
        draft = a_draft("chat_message", chatChannelId="C00ORDERS", chatMessageText="hi")
        assert told(await chat.actions.check(draft)) == [("token_revoked", "error")]
        assert isinstance(chat.actions.host, SmallHost)
        chat.actions.host.agents.append(Agent(id="a", name="A", organization_id="globex"))
        other = NodeDraft(organization_id="globex", agent_id="a", node=draft.node)
        assert told(await chat.actions.check(other)) == [("not_connected", "error")]
        assert chat.provider.calls == []

    async def test_asking_writes_nothing_of_a_dead_token(self, chat: Adopted) -> None:
        """The check says that the token is dead, and leaves noting it to what sends."""
        for token in chat.provider.state.tokens_of(chat.provider.state.workspaces[0]):
            token.dead = "token_revoked"
        draft = a_draft("chat_message", ask_provider=True, chatChannelId="C00ORDERS", chatMessageText="hi")
        assert told(await chat.actions.check(draft)) == [("token_revoked", "error")]
        assert (await connections_of(chat).existing("acme")).status == "active"


async def test_without_chat_settings_the_problem_says_whom_to_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chat that is not configured is an error of the whole config, and its settings are the operators'."""
    monkeypatch.chdir(tmp_path)
    actions = FlowActions.load(SmallHost(development(f"sqlite:///{tmp_path / 'f.db'}")))
    async with actions.lifespan(tasks=False):
        (problem,) = await actions.check(a_draft("chat_message", chatChannelId="C1", chatMessageText="hi"))
    assert (problem.path, problem.code) == ((), "not_connected")
    assert problem.message == "Chat is not set up in this service. Ask the people who operate it."


class TestEgress:
    @pytest.mark.parametrize(
        ("addresses", "told_of"),
        [(["93.184.215.14"], False), (OSError("no such name"), True), (TimeoutError(), False)],
    )
    async def test_a_host_name_without_an_address_is_a_warning(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, addresses: list[str] | Exception, told_of: bool
    ) -> None:
        """It may be misspelt, or not be there yet; a lookup without an answer says nothing, and neither does a proxy."""

        async def resolve(host: str, port: int) -> list[str]:
            if isinstance(addresses, Exception):
                raise addresses
            return addresses

        monkeypatch.chdir(tmp_path)
        services = services_of(SmallHost(development(f"sqlite:///{tmp_path / 'f.db'}")))
        draft = a_draft("webhook", webhookUrl="http://hooks.exmaple.com/a", webhookMethod="GET")
        for guard, expected in (
            (EgressGuard(development=True, resolve=resolve), told_of),
            (EgressGuard(development=True, resolve=None), False),
        ):
            problems = await WebhookNode(services._outbox, guard).check(draft)
            assert told(problems) == ([("webhookUrl", "unknown_host", "warning")] if expected else [])
            assert all("hooks.exmaple.com" in each.message for each in problems)

    async def test_no_problem_holds_an_address_that_a_name_leads_to(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Check, preview and test say that the host is refused, and not what it resolves to."""
        monkeypatch.chdir(tmp_path)
        settings = development(f"sqlite:///{tmp_path / 'f.db'}", FLOWACTIONS_ENVIRONMENT="production")
        actions = FlowActions.load(SmallHost(settings))
        draft = a_draft("webhook", webhookUrl="http://localhost:9/")
        async with actions.lifespan(tasks=False):
            answers: list[object] = [await actions.check(draft), await actions.preview(draft, a_walk())]
            answers.append(await actions.test(draft, a_walk()))
        for answer in answers:
            assert "127.0.0.1" not in repr(answer)
            assert "::1" not in repr(answer)
            assert "not allowed" in repr(answer)
