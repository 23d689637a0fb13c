"""The parts of the world that a check asks a host for, under ids that no other check has. Nothing here does anything."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from flowactions_conformance.kit.probing.plugin import NODE
from flowactions_conformance.kit.under_test import (
    Action,
    Agent,
    Flow,
    Item,
    Login,
    Organization,
    Step,
    World,
)


class Parts:
    """Makes ids, URLs, nodes, flows and worlds of one check.

    Args:
        check_id: of the check, for the names of flows.
        receiver_url: where webhooks of the check go.

    Attributes:
        token: eight characters that no other check has; part of every id and URL of this one.
        organization: the kit's id of this check's own organization.
        agent: the kit's id of its agent.
        author: a person of the organization who may change things.
        ids: kit id → the host's id, of everything that was seeded.
    """

    def __init__(self, check_id: str, receiver_url: str) -> None:
        self._check_id = check_id
        self._receiver_url = receiver_url
        self.token = secrets.token_hex(4)
        self.organization = self.id("org")
        self.agent = self.id("agent")
        self.author = Login(kind="dashboard", organization=self.organization, id=self.id("author"))
        self.ids: dict[str, str] = {}

    def id(self, name: str) -> str:
        """Return a kit id of this check: 1 to 40 letters, digits and hyphens."""
        return f"{name}-{self.token}"

    def of_host(self, kit_id: str) -> str:
        """Return the host's id of something that was seeded."""
        return self.ids.get(kit_id, kit_id)

    def hook(self, name: str, fails: int = 0) -> str:
        """Return a URL of the receiver that only this check uses; each event's first ``fails`` requests get a 500."""
        failing = f"fail-first/{fails}/" if fails else ""
        return f"{self._receiver_url}/hooks/{failing}{self.token}/{name}"

    def refusing(self, name: str, status: int) -> str:
        """Return a URL of the receiver that only this check uses, where each request gets this status."""
        return f"{self._receiver_url}/hooks/status/{status}/{self.token}/{name}"

    def new_key(self) -> str:
        """Return an idempotency key that was not used before."""
        return f"key-{self.token}-{secrets.token_hex(4)}"

    def probe(self, node: str, **config: object) -> Action:
        """Return a probe node.

        Args:
            node: its name, unique in this check.
            config: ``gate`` (waits until `open_gate`), ``status``, ``reason``, ``halt``, ``crash`` (``"once"``: in the first reach of a run),
                ``write_fails`` (its
                SQL fails), ``told`` (it is reported when it is recorded); anything else is only config.
        """
        return Action(id=self.id(node), type=NODE, config={"token": self.token, "name": node, **config})

    def webhook(self, node: str, **config: object) -> Action:
        """Return a webhook node that sends to `hook` of its name; ``config`` adds to or replaces its fields."""
        defaults = {
            "webhookUrl": self.hook(node),
            "webhookMethod": "POST",
            "webhookBody": '{"user": {{userId}}, "content": {{content}}}',
            "webhookRetryOnFailure": True,
            "webhookContinueOnFailure": True,
        }
        return Action(id=self.id(node), type="webhook", config={**defaults, **config})

    def step(self, name: str) -> Step:
        """Return a content step."""
        return Step(id=self.id(name), text=f"Text of {name}")

    def flow(self, *items: Item, pacing: str = "eager", name: str = "flow") -> Flow:
        """Return a flow of this check's agent."""
        return msgspec.convert(
            {
                "id": self.id(name),
                "name": f"{self._check_id} {name}",
                "organization": self.organization,
                "agent": self.agent,
                "pacing": pacing,
                "items": msgspec.to_builtins(items),
            },
            Flow,
        )

    def world(self, *flows: Flow, **more: Any) -> World:
        """Return a world with this check's organization, agent and author, and these flows."""
        base = {
            "organizations": (Organization(id=self.organization, name=f"Org {self.token}"),),
            "agents": (Agent(id=self.agent, name=f"Agent {self.token}", organization=self.organization),),
            "logins": (self.author,),
            "flows": flows,
        }
        merged = {name: (*base.get(name, ()), *more.get(name, ())) for name in {*base, *more}}
        return World(**merged)
