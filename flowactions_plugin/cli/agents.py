"""``flowactions mcp``: serves the tools of `cli.tools` to an agent's client, over standard input and output."""

from __future__ import annotations

import logging
import os
import signal
from importlib.metadata import version
from typing import Any, Final

from flowactions_hookspecs import FlowActionsError
from flowactions_plugin.cli.context import actor, opened
from flowactions_plugin.cli.frame import DONE, advice
from flowactions_plugin.cli.output import summary
from flowactions_plugin.cli.tools import INSTRUCTIONS, TOOLS, Agent, called
from flowactions_plugin.errors import CannotRun, StorageUnavailable
from flowactions_plugin.log_text import printable
from flowactions_plugin.operators.scope import Actor
from flowactions_plugin.storage.outages import refusal_of

try:
    import anyio
    import mcp.types as protocol
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server
except ModuleNotFoundError as missing:
    raise CannotRun(
        "'flowactions mcp' needs an extra: install this package again with its extra 'agents', for example "
        "'../flowactions-plugin[agents]'"
    ) from missing

log = logging.getLogger("flowactions.cli")

MOST_NAME: Final = 80
"""Characters of a client's name in the audit."""

READ_ONLY: Final = "this server can only read: start it with --allow-write"

UNAVAILABLE: Final = (
    "the database did not answer, or it refused: try again in a moment; this server's log says why"
)


async def serve(host: str | None, organization: str | None, allow_write: bool, bodies: bool) -> int:
    """Serve until the client closes standard input.

    Raises:
        CannotRun: the organization is no id.
    """
    if organization is not None and not organization.strip():
        raise CannotRun("--organization must be an id")
    # What a host prints must not come between the messages of the protocol.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as output:
        os.dup2(2, 1)
        async with opened(host) as context:
            agent = Agent(context.insights, context.operations, organization, bodies=bodies)
            # A thread reads standard input, and would keep the process after an interrupt.
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            async with stdio_server(stdout=anyio.wrap_file(output)) as (reader, writer):
                server = server_of(agent, allow_write=allow_write)
                await server.run(reader, writer, server.create_initialization_options())
    return DONE


def server_of(agent: Agent, *, allow_write: bool) -> Server[Any]:
    """Return the server of an agent's tools, without those that write unless they are allowed."""
    offered = [name for name, tool in TOOLS.items() if allow_write or not tool.writes]

    async def on_list(_context: Any, _params: Any) -> protocol.ListToolsResult:
        return protocol.ListToolsResult(tools=[_described(name) for name in offered])

    async def on_call(context: Any, params: protocol.CallToolRequestParams) -> protocol.CallToolResult:
        if params.name not in offered:
            words = READ_ONLY if params.name in TOOLS else f"the tools are {', '.join(offered)}"
            return _answer(words, is_error=True)
        try:
            return _answer(await called(agent, params.name, params.arguments or {}, _actor(context)))
        except StorageUnavailable as exc:
            log.error("%s", exc, extra={"event": "command.storage_unavailable"})  # noqa: TRY400
            refusal = refusal_of(exc.code)
            words = (
                UNAVAILABLE
                if refusal is None
                else f"nothing was changed; the database takes no writes: {refusal[1]}"
            )
            return _answer(words, is_error=True)
        except FlowActionsError as exc:
            return _answer(advice(exc)[0], is_error=True)
        except Exception as exc:  # the next call may succeed; a secret may be in its message
            log.debug("a tool failed unexpectedly", exc_info=True, extra={"event": "command.failed"})
            return _answer(f"failed unexpectedly: {summary(exc)}", is_error=True)

    return Server(
        "flowactions",
        version=version("flowactions-plugin"),
        instructions=INSTRUCTIONS,
        on_list_tools=on_list,
        on_call_tool=on_call,
    )


def _described(name: str) -> protocol.Tool:
    tool = TOOLS[name]
    hints = protocol.ToolAnnotations(
        read_only_hint=not tool.writes,
        destructive_hint=tool.writes,
        idempotent_hint=tool.idempotent,
        open_world_hint=tool.writes,
    )
    return protocol.Tool(name=name, description=tool.description, input_schema=tool.schema, annotations=hints)


def _answer(text: str, *, is_error: bool = False) -> protocol.CallToolResult:
    return protocol.CallToolResult(content=[protocol.TextContent(type="text", text=text)], is_error=is_error)


def _actor(context: Any) -> Actor:
    """Return who acts: the client by the name that it gives, for the user of the operating system who started this server."""
    params = context.session.client_params
    name = printable(params.client_info.name)[:MOST_NAME] if params is not None else ""
    return actor()._replace(name=f"agent:{name or 'unknown'}")
