"""``flowactions worker`` delivers in a process of its own."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
from typing import Final

from flowactions_hookspecs import FlowActions, FlowActionsError, StartFailed
from flowactions_hookspecs.tasks import Supervisor
from flowactions_plugin.cli.context import opened_host
from flowactions_plugin.services import Services

log = logging.getLogger("flowactions.cli")

MOST_DESCRIPTORS: Final = 65_536
"""How many descriptors a worker allows itself, where the machine allows as many: connections to receivers are kept."""

COLLECTION_THRESHOLD: Final = 20_000
"""How many more objects than before a worker has when cycles among the young ones are searched for."""


def worker(host: str) -> int:
    """Deliver until a signal comes."""
    try:
        from uvloop import new_event_loop  # of the extra "fast"
    except ImportError:
        new_event_loop = asyncio.new_event_loop
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_deliver(host))


async def _deliver(host: str) -> int:
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
    os._exit(128 + number)


def _allow_descriptors() -> None:
    """Raise the soft limit of descriptors, which is 1,024 on many machines, as far as this process may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(MOST_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _relieve_collector() -> None:
    """Have the collector of cycles pass over what the start has made, and run less often.

    Deliveries make no cycles, but thousands of objects that live for a moment: with Python's own threshold, collections
    take a twelfth of a worker's time and find nothing.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTION_THRESHOLD)
