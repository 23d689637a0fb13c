"""LOAD: the host loads every installed plugin, once, and keeps two hosts in one process apart."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Final

from flowactions_conformance.kit.probing.plugin import NODE
from flowactions_conformance.kit.registry import check
from flowactions_conformance.kit.session import Host
from flowactions_conformance.kit.trial import Trial

WALKS: Final = 12
"""In each of two hosts, at the same time."""


@check(
    "LOAD-1",
    profile="core",
    clause="contract: What a host does (Plugins), Hooks",
    causes=(
        "the host does not load plugins with FlowActions.load(host), which reads the entry points",
        "the host was loaded before the kit put its plugin on the path: load in make_host, not at import",
    ),
)
async def loads_installed_plugins(trial: Trial) -> None:
    """A plugin that is installed is loaded, without any change to the host."""
    loaded = trial.reports("loaded")
    trial.expect(
        loaded,
        "the probe plugin, which is on the path with an entry point, was not loaded",
        expected="its hook flowactions_node_types is called by FlowActions.load",
        actual="it was never called",
    )
    times = Counter(event.pid for event in loaded)
    trial.equal(
        set(times.values()),
        {1},
        "the plugins were loaded more than once for one host, in one process",
        causes=(
            "FlowActions.load is called twice: call it once, and share what it returns between editor, routes and walk",
        ),
    )


@check(
    "LOAD-2",
    profile="core",
    clause="contract: What a host does (Plugins)",
    causes=("the palette is a fixed list: make it of actions.node_types",),
)
async def shows_the_node_types_of_all_plugins(trial: Trial) -> None:
    """The editor's palette offers the node types of every plugin."""
    await trial.seed()
    names = [entry.get("name") for entry in await trial.call("palette", trial.author)]
    for name in (NODE, "webhook", "chat_message"):
        trial.equal(names.count(name), 1, f"the palette must offer {name!r} once", causes=trial.check.causes)


@check(
    "LOAD-3",
    profile="core",
    clause="contract: The facade",
    causes=(
        "the app, the facade, a cache or an engine is a global of a module: make them in make_host",
        "the host keeps its data at a fixed place: keep it at env.database_url or in env.state_dir",
        "a buffer or the present request is a global of a module: two hosts in two threads use it at the same time",
    ),
    served="no",
)
async def keeps_hosts_apart(trial: Trial) -> None:
    """Two hosts that run side by side share nothing: each walks its own flows with its own plugins.

    Each runs in a thread of its own, and both walk at the same time, too.
    """
    first, second = trial.host, await trial.start()
    flows = {
        host.name: trial.flow(trial.probe("node", of=host.name), trial.webhook(host.name))
        for host in (first, second)
    }
    ids: dict[str, str] = {}
    for host in (first, second):
        await trial.seed(flows[host.name], host=host)
        ids[host.name] = trial.of_host(flows[host.name].id)
    for host in (first, second):
        await trial.call("open", ids[host.name], trial.id("user"), "content", host=host)
    seen = [
        (event.data["node"]["config"]["of"], event.host)
        for event in trial.session.control.events
        if event.kind == "reach" and event.data["node"]["config"].get("token") == trial.token
    ]
    trial.equal(
        seen,
        [(host.name, host.name) for host in (first, second)],
        "of two hosts, one walks the other's flow or uses the other's plugins (flow's host, plugins' host)",
    )
    await _walks_at_the_same_time(trial, {host: ids[host.name] for host in (first, second)})


async def _walks_at_the_same_time(trial: Trial, flows: dict[Host, str]) -> None:
    """Each walk has its own user and content, in the plugins and at the receiver, whatever the other thread walks."""
    walks = [
        (host, trial.id(f"{host.name}-{number}"), f"content {number} of {host.name}")
        for number in range(WALKS)
        for host in flows
    ]
    await asyncio.gather(
        *(trial.call("open", flows[host], user, said, host=host) for host, user, said in walks)
    )
    message = "of two hosts that run in two threads, one gets what belongs to a walk of the other"
    users = {user for _, user, _ in walks}
    seen = Counter(
        (event.host, event.data["node"]["config"]["of"], walk["userId"], walk["content"])
        for event in trial.session.control.events
        if event.kind == "reach" and (walk := event.data["walk"])["userId"] in users
    )
    trial.equal(seen, Counter((host.name, host.name, user, said) for host, user, said in walks), message)
    for host in flows:
        sent = {(user, said) for of, user, said in walks if of is host}
        arrived = await trial.until_arrived(host.name, WALKS + 1)
        bodies = [json.loads(arrival.body) for arrival in arrived]
        trial.equal(
            {(body["user"], body["content"]) for body in bodies if body["user"] in users}, sent, message
        )
