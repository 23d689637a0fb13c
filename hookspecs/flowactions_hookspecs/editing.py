"""The part of `FlowActions` for nodes that an author edits: `check`, `preview` and `test`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from flowactions_hookspecs.checks import check_draft
from flowactions_hookspecs.core import Core
from flowactions_hookspecs.drafts import ConfigProblem, Preview, TestOutcome
from flowactions_hookspecs.errors import AgentNotFound
from flowactions_hookspecs.hooks import returned
from flowactions_hookspecs.nodes import PLUGIN_ERROR_MESSAGE, NodeDraft, NodeType, Walk

log = logging.getLogger("flowactions")

MASK: Final = "••••••••"
"""What a preview gets instead of a secret."""


class Editing:
    """The calls of an editor. They do not raise for anything that a config, a provider or a receiver causes.

    If the host has `Host.agent`, each call first looks up the draft's agent, and raises what that method raises, or
    `AgentNotFound` if the organization has no such agent. Draft and walk of other organizations are a `ValueError`. A
    walk gives the values of the template variables; its agent is the draft's.
    """

    _core: Core

    async def check(self, draft: NodeDraft) -> Sequence[ConfigProblem]:
        """Return the problems of a node's config while an author edits it; empty: no problems.

        A provider is called only if ``draft.ask_provider`` is true. Nothing is sent or written.
        """
        await self._check(draft)
        node_type = self._core.node_types.get(draft.node.type)
        if node_type is None:
            return (unknown_type(draft.node.type),)
        if node_type.check is None:
            return ()
        try:
            return tuple(returned(each, ConfigProblem, "check") for each in await node_type.check(draft))
        except Exception:
            log.exception(
                "node type %s failed to check a draft", node_type.name, extra={"event": "draft.check_failed"}
            )
            return (ConfigProblem(code="plugin_error", message=PLUGIN_ERROR_MESSAGE, severity="warning"),)

    async def preview(self, draft: NodeDraft, walk: Walk) -> Preview:
        """Return what the node would send if it ran now, with masked secrets, and the signature as ``v1,…``.

        Nothing is sent or written.
        """
        await self._check(draft, walk)
        node_type = self._core.node_types.get(draft.node.type)
        if node_type is None:
            return Preview(problems=(unknown_type(draft.node.type),))
        if node_type.preview is None:
            message = f"Nodes of type {node_type.title} have no preview."
            return Preview(problems=(ConfigProblem(code="no_preview", message=message, severity="warning"),))
        try:
            walk = msgspec.structs.replace(walk, agent_id=draft.agent_id)
            return returned(await node_type.preview(_masked(draft, node_type), walk), Preview, "preview")
        except Exception:
            log.exception(
                "node type %s failed to preview a draft",
                node_type.name,
                extra={"event": "draft.preview_failed"},
            )
            return Preview(problems=(ConfigProblem(code="plugin_error", message=PLUGIN_ERROR_MESSAGE),))

    async def test(self, draft: NodeDraft, walk: Walk) -> TestOutcome:
        """Test a node: one real send by the code of real deliveries, at most ten a minute for each organization.

        A webhook is signed if `Host.node` has the node, with the same URL; otherwise it is sent unsigned (§5.3.6).
        """
        await self._check(draft, walk)
        if draft.node.type not in self._core.node_types:
            problem = unknown_type(draft.node.type)
            return TestOutcome(status="skipped", reason=problem.code, message=problem.message)
        try:
            return returned(await self._core.runtime.test(draft, walk), TestOutcome, "the runtime")
        except Exception:
            log.exception(
                "a test of node type %s failed unexpectedly",
                draft.node.type,
                extra={"event": "node_test.failed"},
            )
            return TestOutcome(status="failed", reason="plugin_error", message=PLUGIN_ERROR_MESSAGE)

    async def _check(self, draft: NodeDraft, walk: Walk | None = None) -> None:
        self._core.check_usable()
        check_draft(draft, walk)
        if not await self._core.runtime.has_agent(draft.organization_id, draft.agent_id):
            raise AgentNotFound


def unknown_type(name: str) -> ConfigProblem:
    """Return the problem of a node whose type no plugin offers."""
    return ConfigProblem(
        code="unknown_node_type", message=f"No installed plugin offers the node type {name!r}."
    )


def _masked(draft: NodeDraft, node_type: NodeType) -> NodeDraft:
    secrets = {name: MASK for name in node_type.secret_fields if draft.node.config.get(name)}
    node = msgspec.structs.replace(draft.node, config={**draft.node.config, **secrets})
    return msgspec.structs.replace(draft, node=node)
