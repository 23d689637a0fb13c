"""A second author's plugin: node types that keep a CRM's contacts, installed as a distribution of its own.

``crm_upsert`` is durable by the outbox, ``crm_contact`` by a table of the plugin's own in the host's database, and
``crm_note`` calls the CRM while it runs.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec
from litestar import Router, get
from litestar.params import FromQuery
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from flowactions_hookspecs import (
    ConfigProblem,
    FlowActions,
    Header,
    Host,
    InTransaction,
    Node,
    NodeDraft,
    NodeResult,
    NodeType,
    OutboundWebhook,
    PickerChoice,
    PickerPage,
    PluginOrigin,
    Preview,
    SettingsInvalid,
    Walk,
    hookimpl,
)

flowactions_contract = (1, 0)

PLUGIN = "crm"
LISTS = ("customers", "leads", "partners")


class Crm:
    """What the plugin keeps for one host."""

    def __init__(self, host: Host, actions: FlowActions) -> None:
        self.host = host
        self.actions = actions
        self.url = host.settings.get("CRM_URL", "")
        if not self.url.startswith(("http://", "https://")):
            raise SettingsInvalid("CRM_URL must be the CRM's address, for example https://crm.example.com/")

    async def upsert(self, walk: Walk, node: Node) -> NodeResult | InTransaction:
        """Enqueue the contact; the egress rules are asked before there is a transaction."""
        if not node.config.get("list"):
            return NodeResult(status="skipped", reason="no_list", halt=bool(node.config.get("required")))
        prepared = await self.actions.prepare(self._webhook(walk, node))
        return InTransaction(prepared.write)

    async def contact(self, walk: Walk, node: Node) -> InTransaction:
        """Write the contact into the plugin's own table."""

        async def write(transaction: AsyncConnection) -> NodeResult:
            row = {"run": walk.run_id, "node": node.id}
            await transaction.execute(text("INSERT INTO crm_contacts (run, node) VALUES (:run, :node)"), row)
            return NodeResult(status="sent")

        return InTransaction(write)

    async def note(self, walk: Walk, node: Node) -> NodeResult:
        """Call the CRM now."""
        headers = {"authorization": f"Bearer {node.config.get('crmToken') or 'anonymous'}"}
        async with httpx.AsyncClient(trust_env=False) as client:
            note = {"run": walk.run_id, "node": node.id, "said": walk.content}
            await client.post(self.url, json=note, headers=headers)
        return NodeResult(status="sent", halt=bool(node.config.get("halt")))

    async def check(self, draft: NodeDraft) -> Sequence[ConfigProblem]:
        """Say what is wrong with a contact's list."""
        if draft.node.config.get("list") in LISTS:
            return ()
        return [ConfigProblem(path=("list",), code="no_list", message="Choose one of the CRM's lists.")]

    async def preview(self, draft: NodeDraft, walk: Walk) -> Preview:
        """Show what would leave."""
        webhook = self._webhook(walk, draft.node)
        token = Header(key="authorization", value=f"Bearer {draft.node.config.get('crmToken', '')}")
        return Preview(method="POST", url=webhook.url, headers=[token], body=(webhook.body or b"").decode())

    async def secret(self, origin: PluginOrigin) -> str | None:
        """Sign with the list's secret."""
        return f"secret of {origin.id}"

    def _webhook(self, walk: Walk, node: Node) -> OutboundWebhook:
        contact = {"run": walk.run_id, "user": walk.user_id, "node": node.id}
        organization, kind = walk.organization_id, str(node.config.get("list"))
        return OutboundWebhook(
            organization_id=organization,
            agent_id=walk.agent_id,
            event_type="crm.contact_upserted",
            entity=json.dumps([organization, walk.flow_id, walk.run_id, node.id, walk.visit]),
            url=self.url,
            body=json.dumps(contact).encode(),
            origin=PluginOrigin(organization_id=organization, plugin=PLUGIN, name="list", id=kind),
        )


@get("/integrations/crm/lists", sync_to_thread=False)
def lists(search: FromQuery[str] = "", cursor: FromQuery[int] = 0) -> Mapping[str, Any]:
    """List the CRM's lists, two at a time."""
    found = [name for name in LISTS if search in name]
    page, more = found[max(0, cursor) : cursor + 2], cursor + 2
    choices = [PickerChoice(id=name, label=name.title()) for name in page]
    answer: Mapping[str, Any] = msgspec.to_builtins(
        PickerPage(data=choices, next_cursor=str(more) if more < len(found) else None)
    )
    return answer


@hookimpl
def flowactions_node_types(host: Host, actions: FlowActions) -> Sequence[NodeType]:
    crm = actions.plugin_state(Crm)
    upsert = NodeType(
        name="crm_upsert",
        title="Upsert a contact",
        description="Adds the user to a list.",
        reach=crm.upsert,
        check=crm.check,
        preview=crm.preview,
        pickers={"list": "/integrations/crm/lists"},
        secret_fields=["crmToken"],
    )
    contact = NodeType(name="crm_contact", title="Contact", description="Keeps a contact.", reach=crm.contact)
    note = NodeType(
        name="crm_note", title="Note", description="Notes.", reach=crm.note, secret_fields=["crmToken"]
    )
    return [upsert, contact, note]


@hookimpl
def flowactions_route_handlers() -> Sequence[Router]:
    return [Router("/", route_handlers=[lists])]


@hookimpl
def flowactions_signing_secrets(actions: FlowActions) -> Mapping[str, Any]:
    return {"list": actions.plugin_state(Crm).secret}


@hookimpl
def flowactions_lifespan(host: Host) -> Any:
    @asynccontextmanager
    async def opened() -> AsyncIterator[None]:
        if host.database is not None:
            async with host.database.begin() as connection:
                await connection.execute(text("CREATE TABLE IF NOT EXISTS crm_contacts (run TEXT, node TEXT)"))
        yield

    return opened
