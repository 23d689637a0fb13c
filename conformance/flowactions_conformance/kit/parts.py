"""The parts of the world that a check asks a host for, under ids that no other check has. Nothing here does anything."""

from __future__ import annotations

import secrets
import string
from collections.abc import Sequence
from typing import Any

import msgspec

from flowactions_conformance.kit.probing.plugin import NODE
from flowactions_conformance.kit.under_test import (
    Action,
    Agent,
    Branch,
    Flow,
    Item,
    Login,
    Loop,
    Organization,
    Step,
    World,
)


class Parts:
    """Makes ids, URLs, nodes, flows and worlds of one check.

    Args:
        check_id: of the check, for the names of flows.
        receiver_url: where webhooks of the check go.
        shapes: where nodes of its flows stand, in turn: at the ``top``, in a ``loop`` of one round, or in a ``branch``.

    Attributes:
        token: eight letters and digits that no other check has, part of every id and URL of this one.
        organization: the kit's id of this check's own organization.
        agent: the kit's id of its agent.
        author: a person of the organization who may change things.
        ids: kit id → the host's id, of everything that was seeded.
        pacing: of the flows that are made now; see `client.pacings`.
    """

    pacing = "eager"

    def __init__(self, check_id: str, receiver_url: str, shapes: Sequence[str] = ("top",)) -> None:
        self._check_id = check_id
        self._receiver_url = receiver_url
        self._shapes = shapes
        self._shaped: dict[str, str] = {}
        # Capitals and a leading zero: who changes ids has them changed.
        self.token = f"{secrets.choice(string.ascii_uppercase)}0{secrets.token_hex(3)}"
        self.organization = self.id("org")
        self.agent = self.id("agent")
        self.author = Login(kind="dashboard", organization=self.organization, id=self.id("author"))
        self.ids: dict[str, str] = {}

    def id(self, name: str) -> str:
        """Return a kit id of this check: 1 to 40 letters, digits and hyphens."""
        return f"{self._now(name)}-{self.token}"

    def _now(self, name: str) -> str:
        return name if self.pacing == "eager" else f"{name}-paced"

    def of_host(self, kit_id: str) -> str:
        """Return the host's id of something that was seeded."""
        return self.ids.get(kit_id, kit_id)

    def hook(self, name: str, fails: int = 0) -> str:
        """Return a URL of the receiver that only this check uses; each event's first ``fails`` requests get a 500."""
        failing = f"fail-first/{fails}/" if fails else ""
        return f"{self._receiver_url}/hooks/{failing}{self.token}/{self._now(name)}"

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
            config: ``gate`` (waits until `open_gate`), ``status``, ``reason``, ``halt`` (in all runs, or in those with this content), ``crash`` (``"once"``: in the first reach of a run),
                ``write_fails`` (its
                SQL fails), ``told`` (it is reported when it is recorded); anything else is only config.
        """
        paced = {} if self.pacing == "eager" else {"paced": True}
        return Action(
            id=self.id(node), type=NODE, config={"token": self.token, "name": node, **paced, **config}
        )

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

    def flow(self, *items: Item, pacing: str | None = None, name: str = "flow", **of: str) -> Flow:
        """Return a flow of this check's agent, or of another ``organization`` or ``agent``."""
        return msgspec.convert(
            {
                "id": self.id(name),
                "name": f"{self._check_id} {name}",
                "organization": self.organization,
                "agent": self.agent,
                "pacing": pacing or self.pacing,
                "items": msgspec.to_builtins([self._placed(item) for item in items]),
                **of,
            },
            Flow,
        )

    def _placed(self, item: Item) -> Item:
        """Put a node where one of the shapes says, at the same place in each version of a flow."""
        if not isinstance(item, Action):
            return item
        shape = self._shaped.setdefault(item.id, self._shapes[len(self._shaped) % len(self._shapes)])
        if shape == "loop":
            return Loop(id=f"in-{item.id}", times=1, items=(item,))
        return Branch(id=f"in-{item.id}", taken=(item,)) if shape == "branch" else item

    def stands(self, name: str) -> str:
        """Return in words where a node stands, in brackets; empty at the top of its flow."""
        shape = self._shaped.get(self.id(name), "top")
        return "" if shape == "top" else f" (its node stands in a {shape})"

    def world(self, *flows: Flow, **more: Any) -> World:
        """Return a world with this check's organization, agent and author, and these flows.

        The agent is neither the first nor the last of the organization, by id or by order: a host that takes one of those shows it.
        """
        base = {
            "organizations": (Organization(id=self.organization, name=f"Org {self.token}"),),
            "agents": tuple(
                Agent(id=id_, name=f"Agent {id_}", organization=self.organization)
                for id_ in (self.id("a-first"), self.agent, self.id("z-last"))
            ),
            "logins": (self.author,),
            "flows": flows,
        }
        merged = {name: (*base.get(name, ()), *more.get(name, ())) for name in {*base, *more}}
        return World(**merged)
