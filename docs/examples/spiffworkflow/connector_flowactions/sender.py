"""The plugins in the process of a connector proxy, and what a command does with them."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Mapping, MutableMapping
from concurrent.futures import Future
from typing import Any, Final
from uuid import uuid4

from flowactions_hookspecs import (
    DashboardPrincipal,
    FlowActions,
    FlowNodeOrigin,
    Host,
    Node,
    Origin,
    OriginGone,
    Request,
    Walk,
)

ACTIONS: Final = "FLOWACTIONS"
"""In the config of the Flask app: the plugins."""

OWN: Final = ("userId", "content", "visit")
"""Parameters of each command that are no fields of a node."""


class ConnectorHost(Host):
    """What plugins ask of a connector proxy.

    Args:
        config: of the Flask app. ``FLOWACTIONS_SECRETS`` are signing secrets by the names that processes give in
            ``webhookSecret``; ``FLOWACTIONS_SETTINGS`` are the plugins' settings, unless they are in the environment.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self.settings = config.get("FLOWACTIONS_SETTINGS", os.environ)
        self._secrets: Mapping[str, str] = config.get("FLOWACTIONS_SECRETS", {})

    async def dashboard_principal(self, request: Request) -> DashboardPrincipal | None:
        """Nobody signs in here."""

    async def node(self, organization_id: str, flow_id: str, node_id: str) -> Node | None:
        """No flow is here."""

    async def signing_secret(self, origin: Origin) -> str | None:
        """Return the secret whose name is behind the node's type in its id."""
        if not isinstance(origin, FlowNodeOrigin):
            raise OriginGone
        _, _, name = origin.node_id.partition("/")
        if name and name not in self._secrets:
            raise OriginGone
        return self._secrets.get(name)


def start(config: MutableMapping[str, Any]) -> Callable[[], None]:
    """Open the plugins, in a thread with an event loop; call it in each process that serves the app, after a fork.

    Args:
        config: of the Flask app.

    Returns:
        What closes them: call it before the process ends. A process that is killed loses nothing that was queued.

    Raises:
        Exception: a plugin did not start, with any error of its own.
    """
    actions = FlowActions.load(ConnectorHost(config))
    opened: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def stay_open() -> None:
        stop = asyncio.Event()
        async with actions.lifespan():
            opened.set_result((asyncio.get_running_loop(), stop))
            await stop.wait()

    def run() -> None:
        try:
            asyncio.run(stay_open())
        except BaseException as exc:
            if opened.done():
                raise
            opened.set_exception(exc)

    thread = threading.Thread(target=run, name="flowactions", daemon=True)
    thread.start()
    loop, stop = opened.result()

    def close() -> None:
        loop.call_soon_threadsafe(stop.set)
        thread.join()

    config[ACTIONS] = actions
    return close


def reach(config: Mapping[str, Any], kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Reach an action node, and return the answer of a command.

    Args:
        config: of the Flask app, with what `start` has put into it.
        kind: the node's type.
        given: the parameters of the command: fields of the node, and what `walk_of` takes; ``None`` for those without a value.
    """
    fields = {name: value for name, value in given.items() if value is not None}
    of_the_call = {name: fields.pop(name) for name in list(fields) if name.startswith("spiff__") or name in OWN}
    walk = walk_of(config, of_the_call)
    secret = fields.pop("webhookSecret", None)
    node = Node(id=kind if secret is None else f"{kind}/{secret}", type=kind, config=fields)
    actions: FlowActions = config[ACTIONS]
    result = actions.call(actions.reach(walk, node))
    error = {"error_code": f"flowactions_{result.reason}", "message": result.message or ""}
    return {
        "command_response": {
            "body": {"status": result.status, "reason": result.reason},
            "mimetype": "application/json",
        },
        "command_response_version": 2,
        "error": error if result.halt else None,
        "spiff__logs": [],
    }


def walk_of(config: Mapping[str, Any], call: Mapping[str, Any]) -> Walk:
    """Make the walk of a call.

    The visit is ``visit``, or else the id of the task. Without both, each call is another event.

    Args:
        config: of the Flask app.
        call: what the backend tells of it, and the parameters that are no fields of a node.
    """
    return Walk(
        organization_id=config.get("FLOWACTIONS_ORGANIZATION", "spiffworkflow"),
        agent_id="connector",
        flow_id=str(call.get("spiff__process_model_identifier", "process")),
        run_id=str(call.get("spiff__process_instance_id", "process")),
        user_id=str(call.get("userId", "")),
        content=str(call.get("content", "")),
        visit=str(call.get("visit") or call.get("spiff__task_id") or uuid4()),
    )
