from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import text

from flowactions_hookspecs import (
    Deferred,
    FlowActions,
    Node,
    NodeDraft,
    NodeResult,
    NodeType,
    Preview,
    Walk,
    hookimpl,
)
from flowactions_plugin.storage.schema import metadata
from tests.recorder import recorder
from tests.support import SmallHost, a_walk, development, services_of

SECRET = "S3CRET-4711"


class Plugin:
    """A second author's node type with two secret fields, of text and of another kind."""

    def __init__(self) -> None:
        self.previewed: list[dict[str, Any]] = []

    @hookimpl
    def flowactions_node_types(self) -> list[NodeType]:
        async def reach(walk: Walk, node: Node) -> NodeResult:
            return NodeResult(status="sent")

        async def preview(draft: NodeDraft, walk: Walk) -> Preview:
            self.previewed.append(dict(draft.node.config))
            return Preview(text=repr(draft.node.config))

        fields = ("token", "keys")
        return [
            NodeType(
                name="crm", title="CRM", description="…", reach=reach, preview=preview, secret_fields=fields
            )
        ]


async def stored(host: SmallHost) -> str:
    """Read every value of every table."""
    found: list[str] = []
    async with services_of(host)._database.read() as connection:
        for name in metadata.tables:
            for row in await connection.execute(text(f"SELECT * FROM {name}")):  # noqa: S608
                found += [value.decode() if isinstance(value, bytes) else str(value) for value in row]
    return "\n".join(found)


@pytest.mark.parametrize("kind", ["webhook", "crm"])
async def test_secret_fields_are_never_stored_or_shown(
    database_url: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is done with a node, no row, preview, problem or log line holds what its secret fields hold."""
    caplog.set_level("DEBUG")
    host, plugin = SmallHost(development(database_url)), Plugin()
    host.secret = SECRET
    actions = FlowActions.load(host, plugins=[plugin])
    async with recorder() as receiver, actions.lifespan(tasks=False):
        services_of(host).tests._wait_seconds = 0.1
        configs: dict[str, dict[str, Any]] = {
            "webhook": {"webhookUrl": receiver.url, "webhookSecret": SECRET},
            "crm": {"token": SECRET, "keys": {"a": [SECRET]}, "name": "plain-4711"},
        }
        node = Node(id="n1", type=kind, config=configs[kind])
        draft = NodeDraft(organization_id="acme", agent_id="agent-1", node=node)
        shown: list[object] = [await actions.check(draft), await actions.preview(draft, a_walk())]
        shown.append(await actions.test(draft, a_walk()))
        deferred = a_walk(pacing=Deferred("s1"))
        assert (await actions.reach(deferred, node)).status == "recorded"
        rows = await stored(host)
        assert '"n1"' in rows
        assert ("plain-4711" in rows) == (kind == "crm")
        assert (await actions.advance(deferred, "s1")).state == "done"
        rows += await stored(host)
    assert SECRET not in rows
    assert SECRET not in repr(shown)
    assert SECRET not in caplog.text
    for previewed in plugin.previewed:
        assert SECRET not in repr(previewed)
        assert previewed["name"] == "plain-4711"


def test_a_description_is_what_an_editor_needs() -> None:
    """Everything but the callables, camelCase and JSON-ready, with texts for flow authors."""
    actions = FlowActions.load(SmallHost(development("sqlite:///unused.db")), prefix="/api")
    for node_type in actions.node_types.values():
        described = node_type.describe()
        assert {"uiSchema", "configSchema", "pickers", "secretFields", "templateVariables"} <= set(described)
        assert not {"reach", "check", "preview"} & set(described)
        assert all(path.startswith("/api/integrations/") for path in described["pickers"].values())
        assert "§" not in str(described)
        fields = {name for name in described["uiSchema"] if not name.startswith("ui:")}
        known = {*described["configSchema"]["properties"], *described["pickers"]}
        assert fields <= known
        assert set(described["secretFields"]) <= known
