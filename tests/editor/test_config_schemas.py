from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator, Draft202012Validator

from flowactions_hookspecs import FlowActions, NodeType, config_schema
from flowactions_plugin.nodes.webhook import WebhookConfig
from tests import npm
from tests.support import SmallHost

DRAFTS = [Draft7Validator, Draft202012Validator]

CHAT_CONFIGS: list[dict[str, Any]] = [
    {"chatChannelId": "C1", "chatMessageText": "hi"},
    {"chatActionType": "channel", "chatChannelId": "C1", "chatMessageText": "hi"},
    {"chatActionType": "dm", "chatUserId": "U1", "chatMessageText": "hi"},
    {"chatActionType": "dm", "chatUserId": "U1", "chatChannelId": "C1", "chatMessageText": "x" * 5000},
    {
        "chatActionType": "channel",
        "chatChannelId": "C1",
        "chatMessageText": "hi",
        "chatContinueOnFailure": False,
        "chatRetryOnFailure": True,
        "later": {"unknown": None},
    },
]

WEBHOOK_CONFIGS: list[dict[str, Any]] = [
    {"webhookUrl": "https://example.com"},
    {"webhookUrl": "HTTP://localhost:8080/x?a=b#c", "webhookMethod": "purge", "webhookBody": "not json"},
    {
        "webhookUrl": "https://example.com",
        "webhookMethod": "",
        "webhookSecret": "",
        "webhookBody": "",
        "webhookHeaders": [{"key": "a", "value": "b"}, {"value": "no key"}, {}, {"key": "c", "more": 1}],
        "webhookRetryOnFailure": False,
        "webhookContinueOnFailure": False,
        "unknown": [],
    },
]


@pytest.fixture(scope="module")
def node_types(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, NodeType]:
    """The installed node types, as an editor gets them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("host"))
        return FlowActions.load(SmallHost()).node_types


def schema_of(node_types: Mapping[str, NodeType], name: str) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(json.dumps(node_types[name].describe()["configSchema"]))
    return schema


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("name", ["chat_message", "webhook"])
def test_the_schema_is_valid_in_both_drafts(
    node_types: Mapping[str, NodeType], name: str, draft: type[Draft7Validator]
) -> None:
    """A draft-07 and a 2020-12 reader both accept the schema, which names neither."""
    schema = schema_of(node_types, name)
    draft.check_schema(schema)
    text = json.dumps(schema)
    for word in ("$schema", "$ref", "$defs", '"if"', '"then"'):
        assert word not in text
    assert schema["type"] == "object"


@pytest.mark.parametrize("draft", DRAFTS)
def test_configs_that_work_are_valid(node_types: Mapping[str, NodeType], draft: type[Draft7Validator]) -> None:
    """What the nodes run, an editor that validates lets through: unknown keys and falsy values, too."""
    for name, configs in (("chat_message", CHAT_CONFIGS), ("webhook", WEBHOOK_CONFIGS)):
        for config in configs:
            draft(schema_of(node_types, name)).validate(config)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("chat_message", {"chatChannelId": "C1"}),
        ("chat_message", {"chatActionType": "dm", "chatChannelId": "C1", "chatMessageText": "hi"}),
        ("chat_message", {"chatActionType": "channel", "chatUserId": "U1", "chatMessageText": "hi"}),
        ("chat_message", {"chatChannelId": "C1", "chatMessageText": ""}),
        ("webhook", {}),
        ("webhook", {"webhookUrl": "ftp://example.com"}),
        ("webhook", {"webhookUrl": "https://example.com", "webhookBody": {"an": "object"}}),
    ],
)
def test_mistakes_show_in_the_editor(
    node_types: Mapping[str, NodeType], name: str, config: dict[str, Any]
) -> None:
    """What the node would refuse, a validating editor refuses first."""
    assert not Draft7Validator(schema_of(node_types, name)).is_valid(config)


INTERNAL = re.compile(
    r"§|``|\b(?:struct|clause|dataclass|msgspec|UNSET|None|data\.config|the walk|enqueue\w*|outbox|egress|payload|args|returns|"
    r"raises|[a-z]+_[a-z_]+|(?:chat|webhook)[A-Z]\w+)\b"
)
"""Words of the code and its documentation, which mean nothing to an author of flows."""


def texts_of(value: object) -> Iterator[str]:
    """Every title, description and help text in a schema or uiSchema."""
    if isinstance(value, dict):
        for key, each in value.items():
            if key in {"title", "description", "ui:help", "ui:placeholder", "ui:title", "ui:description"}:
                yield str(each)
            else:
                yield from texts_of(each)
    elif isinstance(value, list):
        for each in value:
            yield from texts_of(each)


def test_no_text_has_internal_words(node_types: Mapping[str, NodeType]) -> None:
    """Titles, descriptions and what variables stand for are written for authors; each field has a title."""
    for node_type in node_types.values():
        described = node_type.describe()
        texts = [
            described["title"],
            described["description"],
            described["category"],
            *texts_of(described["configSchema"]),
            *texts_of(described["uiSchema"]),
            *described["templateVariables"].values(),
        ]
        assert [text for text in texts if INTERNAL.search(text)] == []
        assert all(text[0].isupper() or text[0] in "*{h" for text in texts)
        fields = dict(described["configSchema"]["properties"])
        assert [name for name, field in fields.items() if not field.get("title")] == []


@given(
    st.fixed_dictionaries(
        {"webhookUrl": st.text().map(lambda rest: f"https://{rest}")},
        optional={
            "webhookMethod": st.text(),
            "webhookSecret": st.text(),
            "webhookBody": st.text(),
            "webhookHeaders": st.lists(st.dictionaries(st.sampled_from(["key", "value", "x"]), st.text())),
            "webhookRetryOnFailure": st.booleans(),
            "webhookContinueOnFailure": st.booleans(),
        },
    )
)
def test_any_text_is_a_valid_config(config: dict[str, Any]) -> None:
    """The schema is about form; whether a URL or body works is the node's to say, with a reason."""
    Draft7Validator(config_schema(WebhookConfig)).validate(config)


@pytest.fixture(scope="module")
def rjsf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A throw-away folder with the npm packages."""
    folder = tmp_path_factory.mktemp("rjsf")
    packages = [
        "@rjsf/core@6",
        "@rjsf/utils@6",
        "@rjsf/validator-ajv8@6",
        "react@19",
        "react-dom@19",
        "jsdom@26",
    ]
    npm.install(folder, *packages)
    shutil.copy(Path(__file__).with_name("rjsf.mjs"), folder)
    return folder


@pytest.mark.node
class TestReactJsonSchemaForm:
    """The forms as react-jsonschema-form shows them, with the very schema and uiSchema of the node types."""

    def render(self, folder: Path, node_type: NodeType, *configs: dict[str, Any]) -> list[dict[str, Any]]:
        described = node_type.describe()
        forms = [
            {"schema": described["configSchema"], "uiSchema": described["uiSchema"], "formData": config}
            for config in configs
        ]
        done = subprocess.run(
            ["node", "rjsf.mjs"],  # noqa: S607  the one on the path
            cwd=folder,
            input=json.dumps(forms),
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        output = json.loads(done.stdout)
        assert output["complaints"] == []
        rendered: list[dict[str, Any]] = output["rendered"]
        return rendered

    def test_the_chat_form_shows_the_fields_of_the_chosen_target(
        self, rjsf: Path, node_types: Mapping[str, NodeType]
    ) -> None:
        """Channel shows the channel field, dm the person field, and a new node starts with channel."""
        new, channel, member = self.render(
            rjsf, node_types["chat_message"], {}, *({"chatActionType": kind} for kind in ("channel", "dm"))
        )
        common = ["root_chatMessageText", "root_chatRetryOnFailure", "root_chatContinueOnFailure"]
        assert ids(new) == ids(channel) == ["root_chatActionType", "root_chatChannelId", *common]
        assert ids(member) == ["root_chatActionType", "root_chatUserId", *common]
        assert channel["options"]["root_chatActionType"] == ["A channel", "A person (direct message)"]
        assert {"Send to", "Channel*", "Message*"} <= set(channel["labels"])
        assert new["completed"] == {
            "chatActionType": "channel",
            "chatRetryOnFailure": False,
            "chatContinueOnFailure": True,
        }

    def test_the_webhook_form_shows_every_field(self, rjsf: Path, node_types: Mapping[str, NodeType]) -> None:
        """Every field of §2.4 has a control, the secret's is masked, and headers are rows."""
        (form,) = self.render(rjsf, node_types["webhook"], WEBHOOK_CONFIGS[2])
        shown = ids(form)
        for name in ("Url", "Method", "Body", "Secret", "RetryOnFailure", "ContinueOnFailure"):
            assert f"root_webhook{name}" in shown
        assert {"root_webhookHeaders_0_key", "root_webhookHeaders_3_value"} <= set(shown)
        controls = {control["id"]: control for control in form["controls"]}
        assert controls["root_webhookSecret"]["type"] == "password"
        assert controls["root_webhookBody"]["tag"] == "textarea"

    def test_configs_that_work_are_valid_there_too(
        self, rjsf: Path, node_types: Mapping[str, NodeType]
    ) -> None:
        """The form's own validator finds nothing wrong with configs that the nodes run."""
        for name, configs in (("chat_message", CHAT_CONFIGS), ("webhook", WEBHOOK_CONFIGS)):
            assert [form["errors"] for form in self.render(rjsf, node_types[name], *configs)] == [[]] * len(
                configs
            )


def ids(form: dict[str, Any]) -> list[str]:
    return [control["id"] for control in form["controls"]]
