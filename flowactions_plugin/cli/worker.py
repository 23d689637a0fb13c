"""``flowactions worker`` delivers in a process of its own; ``flowactions workers`` lists the processes that deliver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flowactions_plugin.cli.frame import DONE, FAILED, TABLES_EXITS, command
from flowactions_plugin.cli.options import host_option
from flowactions_plugin.cli.output import moment, status, table, write_json

if TYPE_CHECKING:
    import asyncio

MOST_DESCRIPTORS: Final = 65_536
"""How many descriptors a worker allows itself, where the machine allows as many: connections to receivers are kept."""

COLLECTION_THRESHOLD: Final = 20_000
"""How many more objects than before a worker has when cycles among the young ones are searched for."""


def _event_loop() -> asyncio.AbstractEventLoop:
    """Return an event loop: uvloop's, where the extra ``fast`` is installed."""
    try:
        import uvloop  # optional
    except ImportError:
        import asyncio

        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


@command("worker", exits={0: "after a graceful stop"}, loop_factory=_event_loop)
@host_option(required=True)
async def worker(host: str) -> int:
    """Deliver the rows of the outbox, in a process of its own.

    It runs until SIGTERM, SIGINT or SIGHUP; if nohup has started it, it ignores SIGHUP. At the end it stops claiming, finishes
    the attempts in flight, and gives its other rows back. Any number of workers may run with one PostgreSQL.
    """
    import asyncio
    import logging
    import os
    import signal

    from flowactions_hookspecs import FlowActions, FlowActionsError, StartFailed
    from flowactions_hookspecs.tasks import Supervisor
    from flowactions_plugin.cli.context import opened_host
    from flowactions_plugin.services import Services

    log = logging.getLogger("flowactions.cli")
    _allow_descriptors()
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    stopping = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        stopping.append(signal.SIGHUP)

    def stop_once() -> None:
        stop.set()
        for number in stopping:
            loop.remove_signal_handler(number)
            # The kernel ignores the default action of a container's first process.
            signal.signal(number, _exit if os.getpid() == 1 else signal.SIG_DFL)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # one more comes when a terminal is closed
        # Logged after the handlers are removed, so that it is true when it is read.
        log.info(
            "stopping: what is being sent is finished first; a second signal ends the process at once",
            extra={"event": "worker.stopping"},
        )

    for number in stopping:
        loop.add_signal_handler(number, stop_once)
    async with opened_host(host) as made:
        actions = FlowActions.load(made)
        tasks = actions.plugin_state(Services).tasks_left_to_workers()
        try:
            async with actions.lifespan(), Supervisor(tasks):
                _relieve_collector()
                log.info("worker %s delivers", os.getpid(), extra={"event": "worker.started"})
                await stop.wait()
        except StartFailed as exc:
            # The plugin's own error says what to do, and its kind is the exit status.
            raise (exc.__cause__ if isinstance(exc.__cause__, FlowActionsError) else exc) from None
    log.info("worker %s has stopped", os.getpid(), extra={"event": "worker.stopped"})
    return 0


def _exit(number: int, _frame: object) -> None:
    import os

    os._exit(128 + number)


def _allow_descriptors() -> None:
    """Raise the soft limit of descriptors, which is 1,024 on many machines, as far as this process may."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(MOST_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _relieve_collector() -> None:
    """Have the collector of cycles pass over what the start has made, and run less often.

    Deliveries make no cycles, but thousands of objects that live for a moment: with Python's own threshold, collections
    take a twelfth of a worker's time and find nothing.
    """
    import gc

    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTION_THRESHOLD)


@command(
    "workers",
    document="cli.documents:Workers",
    exits={**TABLES_EXITS, FAILED: "no worker is alive; or it failed"},
)
@host_option()
async def workers(host: str | None, as_json: bool) -> int:
    """List the processes that deliver: workers, and hosts that deliver themselves."""
    from flowactions_plugin.cli.context import opened
    from flowactions_plugin.cli.documents import Workers
    from flowactions_plugin.insights.status import QueueStatus
    from flowactions_plugin.insights.verdict import clock_offset

    async with opened(host) as context:
        found = list(await QueueStatus.of(context.database, context.settings).workers())
    alive = any(worker.state == "alive" for worker in found)
    if as_json:
        write_json(Workers(data=found))
    elif found:
        table(
            found,
            {
                "name": lambda each: each.name,
                "state": lambda each: "does not answer" if each.state == "stale" else each.state,
                "version": lambda each: each.version,
                "machine": lambda each: each.host_name,
                "pid>": lambda each: each.pid,
                "mode": lambda each: each.mode,
                "in flight>": lambda each: None if each.state == "stale" else each.in_flight,
                "slots>": lambda each: each.slots,
                "started": lambda each: moment(each.started_at),
                "seen": lambda each: moment(each.last_seen_at),
                "clock": lambda each: clock_offset(each.clock_ahead_ms),
                "claimed": lambda each: moment(each.last_claim_at),
            },
        )
    if not alive:
        status(
            "no worker is alive: start the host, or 'flowactions worker' if the host does not deliver by itself"
        )
    return DONE if alive else FAILED
