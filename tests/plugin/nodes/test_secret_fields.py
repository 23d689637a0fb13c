"""Secret fields of a node type that another plugin brings."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from msgspec.structs import replace

from flowactions_hookspecs import (
    Node,
    NodeResult,
    Walk,
)
from flowactions_plugin.nodes.store import MAX_LEASES
from tests.plugin.nodes.crm import crm
from tests.support import SmallHost


class TestSecretFields:
    @pytest.mark.ci
    async def test_a_host_that_fails_does_not_make_recovery_spin(
        self, database_url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        """However many steps wait for their secrets, each is tried once in a while, uncounted, and is not lost."""
        caplog.set_level(logging.CRITICAL, "flowactions")
        away = True

        class Asked(SmallHost):
            asked = 0

            async def node(self, organization_id: str, flow_id: str, node_id: str) -> Node | None:
                Asked.asked += 1
                if away:
                    raise RuntimeError
                return Node(id=node_id, type="crm", config={"key": "hush"})

        seen: list[Any] = []

        async def act(walk: Walk, node: Node) -> NodeResult:
            seen.append(node.config.get("key"))
            return NodeResult(status="sent")

        async with crm(database_url, act, Asked) as run:
            secret = replace(run.actions.node_types["crm"], secret_fields=("key",))
            run.pacing._node_types = lambda: {"crm": secret}
            walks = [await run.record("n") for _ in range(25)]
            for walk in walks:
                assert (await run.actions.advance(walk, "s")).state == "done"
            for _ in range(MAX_LEASES + 1):
                await run.pass_time()
                before = Asked.asked
                while await run.pacing.recover():
                    pass
                assert Asked.asked == before + len(walks)
            away = False
            await run.pass_time()
            while await run.pacing.recover():
                pass
            assert seen == ["hush"] * len(walks)
            assert await run.ids("flowactions_deferred WHERE ran_at IS NULL", "node_id") == []
