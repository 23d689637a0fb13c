"""What authors write into the forms of both node types: each mistake is told at its field, and nothing right is blamed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flowactions_hookspecs import ConfigProblem, Node, NodeDraft
from flowactions_plugin.egress.guard import EgressGuard
from flowactions_plugin.errors import BodyInvalid
from flowactions_plugin.nodes import chat_message
from flowactions_plugin.nodes.faults import explained
from flowactions_plugin.nodes.template import check_json, place
from flowactions_plugin.nodes.webhook import WebhookNode
from tests.plugin.nodes.problems import told
from tests.support import SmallHost, development, services_of

URL = "https://192.88.98.1/hooks"
"""An address, so that nothing depends on a name server."""

UNKNOWN = "hooks.exmaple.com"
B64 = "c2VjcmV0c2VjcmV0c2VjcmV0"


class Input(NamedTuple):
    """What an author has written, in a config that is right otherwise.

    Attributes:
        field: of the config.
        written: into it.
        code: of the one problem; empty: there is none, for the input is right.
        said: a part of its message.
        place: line and column.
        at: in texts of a line, what is wrong in them: the place is where it begins. Empty: the whole.
        error: whether the node does not run.
        others: fields that are written as well.
    """

    field: str
    written: Any
    code: str = ""
    said: str = ""
    place: tuple[int, int] | None = None
    at: str = ""
    error: bool = False
    others: dict[str, Any] = {}  # noqa: RUF012  never changed

    @property
    def is_chat(self) -> bool:
        return self.field.startswith("chat")

    @property
    def config(self) -> dict[str, Any]:
        if self.is_chat:
            right = {"chatChannelId": "C00ORDERS", "chatMessageText": "Hello"}
        else:
            right = {"webhookUrl": URL, "webhookBody": '{"user": {{userId}}}'}
        if self.field in {"key", "value"}:
            header = {"key": "x-note", "value": "fine", self.field: self.written}
            return {**right, "webhookHeaders": [header], **self.others}
        return {**right, self.field: self.written, **self.others}

    @property
    def path(self) -> tuple[str | int, ...]:
        return ("webhookHeaders", 0, self.field) if self.field in {"key", "value"} else (self.field,)


def url(written: str, code: str = "", said: str = "", at: str = "", *, error: bool = True) -> Input:
    return Input("webhookUrl", written, code, said, at=at, error=error and bool(code))


def body(written: str, said: str, line: int, column: int, code: str = "invalid_body") -> Input:
    return Input("webhookBody", written, code, said, (line, column), error=code == "invalid_body")


def key(written: str, said: str, at: str = "") -> Input:
    return Input("key", written, "header_dropped", said, at=at)


def value(name: str, written: str, code: str = "", said: str = "", at: str = "", **others: Any) -> Input:
    headers = [{"key": name, "value": written}]
    return Input("value", written, code, said, at=at, others={"webhookHeaders": headers, **others})


def secret(written: str, code: str = "", said: str = "") -> Input:
    return Input("webhookSecret", written, code, said)


def member(written: str, code: str = "", said: str = "") -> Input:
    return Input("chatUserId", written, code, said, others={"chatActionType": "dm"})


VARIABLES_ARE = "The variables are {{userId}} and {{content}}."
MUST_BE_JSON = "The body must be JSON"
A_VALUE = "A value is expected here: text in double quotes, a number, true, false, null, { or [."
A_BACKSLASH = 'A \\ in a text needs one of " \\ / b f n r t behind it, or u and four digits from 0 to f.'

WRONG = [
    url("", "missing_url", "The URL is missing", error=True),
    url("example.com/hooks", "blocked_url", "must start with http:// or https://", "example"),
    url('"https://192.88.98.1/"', "blocked_url", "must start with http:// or https://", '"'),
    url(" \n example.org/hooks", "blocked_url", "must start with http:// or https://", "example"),
    url("https://192.88.98.1/a b", "blocked_url", "contains a space", " "),
    url("https://ada:secret@192.88.98.1/", "blocked_url", "must not contain a user name or password", "ada"),
    url("https://192.88.98.1:99999/", "blocked_url", "port must be from 1 to 65535", "99999"),
    url("http://https://192.88.98.1/", "blocked_url", "not well formed", "https"),
    url("http://localhost:8000/", "blocked_url", "not allowed", "localhost"),
    url("http://10.1.2.3/hooks", "blocked_url", "Requests to 10.1.2.3 are not allowed (private)", "10."),
    url(f"https://{UNKNOWN}/", "unknown_host", f"The name {UNKNOWN} was not found.", UNKNOWN, error=False),
    url(f"{URL}#?token=5f1c0a", "fragment_dropped", "is not sent", "#", error=False),
    url(f"{URL}#orders", "fragment_dropped", "The part from # on is not sent", "#", error=False),
    url(
        f"{URL}/{{{{userId}}}}",
        "token_not_substituted",
        "{{userId}} is not substituted here",
        "{{",
        error=False,
    ),
    url("https://192.88.98.1\\hooks", "blocked_url", "a backslash", "\\"),
    url("https://example..com/", "blocked_url", "not a host name", "example"),
    url(f"{URL}/{{userId}}", "token_not_substituted", "{userId} is not substituted", "{", error=False),
    url(f"{URL}/{{{{user.id}}}}", "token_not_substituted", "and stays as it is.", "{{", error=False),
    *(
        url(
            f"{URL}/a{unseen}b?c",
            "invisible_character",
            f"(U+{ord(unseen):04X}). Remove it",
            unseen,
            error=False,
        )
        for unseen in "\u00ad\u202e\u3164\ufe0f"
    ),
    url(f"  {URL}\u200b ", "invisible_character", "(U+200B)", "\u200b", error=False),
    body('{"name": “Ada”}', '“ does not quote text in JSON. Write " in its place.', 1, 10),
    body("{‘name’: 1}", '‘ does not quote text in JSON. Write " in its place.', 1, 2),
    body('{"text": "Hello\nAda"}', "A text cannot contain a line break. Write \\n in its place", 1, 16),
    body('{"a": "never closed\r\n}', "A text cannot contain a line break.", 1, 20),
    body('{\n  "a": 1,\n}', "Nothing follows this comma. Remove it.", 2, 9),
    body('["a", "b" , ]', "Nothing follows this comma. Remove it.", 1, 11),
    body('{"a": 1,,}', "Nothing follows this comma. Remove it.", 1, 9),
    body('{"a":\u00a01}', "This is an invisible character (U+00A0). Remove it.", 1, 6),
    body('{"a": {{name}}}', f"{{{{name}}}} is not a variable. {VARIABLES_ARE} {MUST_BE_JSON}", 1, 7),
    body('{"a": {{userid}}}', "{{userid}} is not a variable: write {{userId}}.", 1, 7),
    body('{"a": {userId}}', "{userId} is not a variable: write {{userId}}.", 1, 7),
    body('{"a": ${content}}', "${content} is not a variable: write {{content}}.", 1, 7),
    body(
        '{\n  "user": {{userId\n}', f"{{{{userId is not a variable: write {{{{userId}}}}. {MUST_BE_JSON}", 2, 11
    ),
    body('{"a": {{userId}}, "b": {{content}', "{{content} is not a variable: write {{content}}.", 1, 24),
    *(
        body(written, f"{said} {MUST_BE_JSON}", line, column)
        for written, said, line, column in (
            ('{"a": {{content}},\n "é": {{userId}} x}', "A comma or } is expected here.", 2, 18),
            ('{"😀": tru}', A_VALUE, 1, 7),
            ("{'name': 1}", "' does not quote text in JSON. Write \" in its place.", 1, 2),
            ("[`x`]", '` does not quote text in JSON. Write " in its place.', 1, 2),
            ("{name: 1}", "A name in double quotes or } is expected here.", 1, 2),
            ('{"a": 1, // note\n}', "A name in double quotes is expected here.", 1, 10),
            ('{"a" 1}', "A colon is expected here.", 1, 6),
            ('{"b": {"a"}}', "A colon is expected here.", 1, 11),
            ('{"a": ["x"}', "A comma or ] is expected here.", 1, 11),
            ("[", f"A value or ]{A_VALUE.removeprefix('A value')}", 1, 2),
            ('{"a": True}', A_VALUE, 1, 7),
            ('{"a": "never closed', 'This text is not closed. Write " at its end.', 1, 7),
            ('{"a": "x”}', 'This text is not closed. Write " at its end.', 1, 7),
            ('{"a": 1', "A comma or } is expected here.", 1, 8),
            ('{"a": 1}\n}', "Nothing more is expected here.", 2, 1),
            ('{"a":\n [NaN]}', A_VALUE.replace("A value", "A value or ]", 1), 2, 3),
            ('{"a": -Infinity}', A_VALUE, 1, 7),
            ('"\\{{userId}}"', A_BACKSLASH, 1, 2),
            ('"\\u00{{userId}}"', A_BACKSLASH, 1, 3),
            ('["a,\t]"]', "A text cannot contain this character. Write \\u0009 in its place.", 1, 5),
            ("[{{userId}}{{content}}]", "A comma or ] is expected here.", 1, 12),
            ('{"a": ,"b": 1}', A_VALUE, 1, 7),
        )
    ),
    body('{"a": "{{name}}"}', f"{{{{name}}}} is not a variable. {VARIABLES_ARE}", 1, 8, "unknown_token"),
    body('{"a": "{userId}"}', "{userId} is not a variable: write {{userId}}.", 1, 8, "unknown_token"),
    body('{"{{userId}}": 1}', "not substituted in a key", 1, 3, "token_not_substituted"),
    body("{ {{userId}}: 1}", "not substituted in a key", 1, 3, "token_not_substituted"),
    body(
        '[{"a{{userId}}": {{userId}}}, {"{{userId}}": 2}]',
        "not substituted in a key",
        1,
        5,
        "token_not_substituted",
    ),
    Input(
        "webhookBody", f'"{"x" * 1_048_576}"', "body_too_large", "The body is larger than 1,024 KB.", error=True
    ),
    Input(
        "webhookBody", '{"a": 1}', "body_dropped", "GET is sent without a body", others={"webhookMethod": "GET"}
    ),
    key("Host", "We set Host. Your value is ignored."),
    key("X-Service-Webhook-Signature", "We set X-Service-Webhook-Signature. Your value is ignored."),
    key("HTTP_X_SERVICE_WEBHOOK_ID", "We set HTTP_X_SERVICE_WEBHOOK_ID. Your value is ignored."),
    key("“X-Note”", "no spaces, colons, quotes or variables"),
    key("X-No\u200bte", "This is an invisible character (U+200B). Remove it.", "\u200b"),
    key("", "A header without a name is left out"),
    value("content_type", "application/x-www-form-urlencoded", "not_json", "The body is JSON, and not what"),
    value("Content-Type", " Multipart/form-data; boundary=x", "not_json", "Remove this header"),
    value("Content-Type", "text/xml", "not_json", "Remove this header"),
    value("X-Note", "two\nlines", "control_characters", "Line breaks"),
    value("X-Note", "a\u200bb", "invisible_character", "(U+200B). Remove it", "\u200b"),
    value("X-Note", "{{name}}", "unknown_token", VARIABLES_ARE, "{{"),
    value("X-Note", "x" * 8193, "headers_too_large", "larger than 8 KB")._replace(error=True),
    *(
        Input("webhookMethod", name, "invalid_method", "POST is used")
        for name in ("P OST", "CONNECT", "{{userId}}")
    ),
    *(
        secret(written, "suspect_secret", said)
        for written, said in (
            (f" {B64}", "contains a space, a line break"),
            (f"s3 {B64}", "contains a space"),
            (f"{B64}\u200b", "invisible character"),
            ('"0123456789abcdef', "begins or ends with a quote"),
            ("0123456789abcdef“", "begins or ends with a quote"),
            ("0123456789abcde", "fewer than 16 characters can be guessed"),
            ("********", "Copy the secret itself"),
            ("whsec_not-base64!", "libraries refuse it. Copy it again"),
            (f"WHSEC_{B64}", "libraries refuse it. Copy it again"),
            (f"v1,whsec_{B64}", "libraries refuse it. Copy it again"),
        )
    ),
    secret(f"{{{{userId}}}}{B64}", "token_not_substituted", "{{userId}} is not substituted here"),
    Input("chatChannelId", "", "missing_target", "Choose a channel", error=True),
    Input("chatChannelId", "#general", "not_an_id", "This is no id"),
    Input("chatChannelId", "general", "not_an_id", "This is no id"),
    Input("chatChannelId", "https://acme.slack.com/archives/C00ORDERS", "not_an_id", "This is no id"),
    Input("chatChannelId", "U000GRACE", "not_an_id", "not the id of a channel"),
    Input("chatChannelId", "C00ORDERS,C0LEADS", "not_an_id", "This is no id"),
    Input("chatChannelId", "T0000ACME", "not_an_id", "not the id of a channel"),
    Input("chatChannelId", "{userId}", "token_not_substituted", "not substituted here"),
    Input("chatChannelId", "{{content}}", "token_not_substituted", "not substituted here"),
    Input("chatActionType", "DM", "unknown_action_type", "dm"),
    member("", "missing_target", "Choose a person")._replace(error=True),
    member("@grace", "not_an_id", "This is no id"),
    member("C00ORDERS", "not_an_id", "not the id of a person"),
    member("D000GRACE", "not_an_id", "not the id of a person"),
    member("grace@example.com", "not_an_id", "This is no id"),
    Input("chatMessageText", " ", "empty_message", "The message is empty", error=True),
    Input("chatMessageText", "x" * 4001, "text_cut", "cut at 4000 characters"),
    Input("chatMessageText", "Hello {{name}}", "unknown_token", VARIABLES_ARE, (1, 7)),
    Input("chatMessageText", "Hello\n{userId}", "unknown_token", "write {{userId}}", (2, 1)),
]
RIGHT = [
    url(URL),
    url(f"  {URL}\n"),
    url("HTTPS://192.88.98.1:8443/a?b=c&d=%20e"),
    url(f"{URL}?tokens=5&key_of=x&token="),
    url(f"{URL}?q=how%23to"),
    url(f"{URL}/bestellung/ä?design=oak"),
    *(
        Input("webhookBody", written)
        for written in (
            '{"user": {{userId}}, "message": {{content}}}',
            '{"text": "He said “hi”, and that’s it: {{content}}"}',
            '{"a": {"id": 1}, "b": [{"id": 1}, {"id": 2}], "id": 3}',
            '{"a": 0, "b": -0.5, "c": 1e-3, "zip": "01234"}',
            '{"text": "one\\ntwo \\"quoted\\" C:\\\\dir 🎉"}',
            '{"keys": "\\"a\\": 1, \\"a\\": 2", "note": "a: 1, a: 2, // no, "}',
            '\n[\n  "{a}",\n  "{ }"\n]\n',
            "{{content}}",
            "null",
            '{"a": null, "b": [], "c": {}, "d": -1.5E+10, "e": "%userId%"}',
            '  {"a": "{{content}} ({{userId}})"}  ',
            '{"query": "mutation { add(user: \\"{{userId}}\\") { id } }", "home": "${HOME}", "first": "{0}"}',
        )
    ),
    Input("webhookBody", "", others={"webhookMethod": "GET"}),
    Input("webhookBody", "", others={"webhookMethod": "DELETE"}),
    value("Authorization", "Bearer {{userId}}"),
    value("Content-Type", "application/vnd.form+json; charset=utf-8"),
    value("Content-Type", "text/plain"),
    value("Content-Type", "{{content}}"),
    value("X-Content-Type", "multipart/form-data"),
    Input(
        "webhookHeaders",
        [{"key": "Content-Type", "value": "multipart/form-data"}],
        others={"webhookMethod": "GET", "webhookBody": None},
    ),
    value("X-Api-Key", "{{userId}}"),
    value("X-Note", 'say "hi" & {{content}}'),
    value("X-Token-Kind", "a-long-word-2026"),
    value("Idempotency-Key", "order-2026-0001"),
    value("X-Sort-Key", "created-at"),
    value("X-Empty", ""),
    value("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    value("X-Signature-Version", "sha256-hmac"),
    value("Cookie", "residence=de-berlin-12; author=grace-hopper; session={{content}}"),
    secret("s3cret-with-'quote'-inside"),
    secret(f"whsec_{B64}"),
    secret("whsec_c2VjcmV0IQ"),
    secret("••••••••"),
    secret("elm_whskey-on-the-rocks"),
    secret(B64),
    secret("p@ss/word+with=signs%20"),
    *(Input("webhookMethod", name) for name in (" patch ", "", None, "PURGE")),
    Input("chatChannelId", " C00ORDERS "),
    Input("chatChannelId", "G000LEADS"),
    Input("chatChannelId", "D000GRACE"),
    member("U000GRACE"),
    member("W0GRACE"),
    Input("chatMessageText", f" {'x' * 4000} "),
    Input("chatMessageText", "*New*: {{content}} <https://example.com|see> & bye"),
    Input("chatMessageText", "{{userId}} wrote: “{{content}}” {not a variable}"),
    Input("chatMessageText", "<!channel> *{{userId}}* <mailto:ada@example.com|@here> `**x** @channel`"),
    Input("chatMessageText", "2**10 = 1024, a ** b, ****, f(**kwargs, **more), [1](2), [x](#y)"),
    Input("chatMessageText", "me@here.example, @channels, ada@channel, ops/@everyone, @here-and-now"),
    Input("chatMessageText", "```\n**{{content}}** [a](https://example.com)\n```"),
]


def named(each: Input) -> str:
    return f"{each.field}={str(each.written)[:40]!r}"


async def resolve(host: str, port: int) -> list[str]:
    if host == UNKNOWN:
        raise OSError("no such name")
    return ["127.0.0.1" if host == "localhost" else "192.88.98.1"]


@pytest.fixture(scope="module")
def drafts(tmp_path_factory: pytest.TempPathFactory) -> WebhookNode:
    """The check of webhooks by the rules of production; nothing of it uses the database."""
    folder = tmp_path_factory.mktemp("authors")
    services = services_of(SmallHost(development(f"sqlite:///{folder / 'f.db'}")))
    return WebhookNode(services._outbox, EgressGuard(development=False, resolve=resolve))


async def problems_of(drafts: WebhookNode, each: Input) -> Sequence[ConfigProblem]:
    if each.is_chat:
        return chat_message.problems(each.config)
    node = Node(id="n1", type="webhook", config=each.config)
    return await drafts.check(NodeDraft(organization_id="acme", agent_id="agent-1", node=node))


@pytest.mark.parametrize("each", WRONG, ids=named)
async def test_a_mistake_is_told_at_its_field(drafts: WebhookNode, each: Input) -> None:
    """It alone, with its place, in words that name no setting and no part of a program."""
    (problem,) = await problems_of(drafts, each)
    assert told([problem]) == [(*each.path, each.code, "error" if each.error else "warning")]
    assert each.said in problem.message
    if each.place is not None:
        assert (problem.line, problem.column) == each.place
    elif each.field in {"webhookUrl", "key", "value"}:
        offset = each.written.index(each.at)
        expected = place(each.written[:offset]) if each.at else (None, None)
        assert (problem.line, problem.column) == expected
    assert problem.message.endswith(".")
    for word in ("FLOWACTIONS", "Errno", "Error", "expecting", "delimiter", "malformed", "byte"):
        assert word not in problem.message


@pytest.mark.parametrize("each", RIGHT, ids=named)
async def test_what_is_right_is_not_blamed(drafts: WebhookNode, each: Input) -> None:
    """Not even with a warning."""
    assert list(await problems_of(drafts, each)) == []


NEXT = {"A name": '"x"', "A colon": ":", "A comma": ",", "A value": "0", "or } is": "}", "or ] is": "]"}
"""What a message says that is expected, as JSON."""


@given(
    st.recursive(
        st.none() | st.integers(0, 9) | st.just("t"),
        lambda inner: st.lists(inner) | st.dictionaries(st.text("ab"), inner),
    ),
    st.integers(0, 100),
    st.sampled_from(["", "x", "}", "]", ",", ":", '"', "{", "1 ", "'", "NaN"]),
)
@example([{}, 0], 3, "")
@example({"a": {}, "b": {}}, 8, "")
def test_what_is_expected_takes_a_reader_further(value: Any, at: int, mistake: str) -> None:
    """With what the message names, put where it says, a reader of JSON gets beyond that place."""
    written = json.dumps(value)
    text = written[:at] + mistake + written[at + 1 :]
    try:
        check_json(text.encode())
    except BodyInvalid as refusal:
        wrong = explained(text, refusal)
    else:
        return
    assert wrong.column is not None
    before = text[: wrong.column - 1]
    for said, token in NEXT.items():
        if said in str(wrong):
            with pytest.raises(json.JSONDecodeError) as stopped:
                json.loads(f"{before}{token} !")
            assert stopped.value.pos > len(before)
    if "Nothing more" in str(wrong):
        json.loads(before)
