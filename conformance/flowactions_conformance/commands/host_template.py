"""The conformance kit's view of my host: how to make it, and how to use it as its users do.

Prove the host: python -m flowactions_conformance run MODULE:make_host

Fill in `app` and the methods. The kit says which ones are missing, and what is wrong with those that are there. An example that is
complete is flowactions_conformance/reference_host/testing.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from flowactions_conformance import Action, Env, Flow, HostDriver, Login, TriggerRef, Turn, World


class MyDriver(HostDriver):
    """Uses my host as its editor, its end users and its customers do: best over HTTP, at env.base_url."""

    # What the host does beyond "core". Add a profile when you want it tested; what is not claimed is not proved:
    # pacing, loops, editing, logic, tenancy, durability, inbound, scale.
    claims = frozenset[str]()

    # With "pacing": which steps a user sees whose flow is edited during the run. "pinned": those of the version that was
    # opened; "live": those of the newest; None: you promise neither, and one check is not tried.
    edits = None

    # The path below which the plugin's routes are, for example "/api".
    prefix = ""

    def __init__(self, env: Env, app: Any) -> None:
        self.env = env
        # Any ASGI app. The kit serves it at env.base_url, and runs its lifespan.
        self.app = app

    # Every host needs these five.

    async def seed(self, world: World) -> Mapping[str, str]:
        """Write what the world describes, or replace what is there under the same kit ids, and keep everything else.

        Organizations, agents, logins and flows, as your host stores them. An `Action` of a flow is an action node: its
        `config` has to reach `Node.config` as it is, unknown keys and falsy values included. `flow.pacing` is "eager"
        (walked to its end when it is opened) or "deferred" (the user goes from step to step). Return kit id → your id for
        everything that has another id in your host, {} if nothing has.
        """
        raise NotImplementedError

    async def palette(self, who: Login) -> Sequence[Mapping[str, Any]]:
        """Return the node types as your editor gets them: what NodeType.describe() of actions.node_types gave."""
        raise NotImplementedError

    async def open(self, flow: str, user: str, content: str) -> Turn:
        """Open a flow (your id) as an end user, and return what the user's client has then.

        Turn(session=…, step_id=your id of the step that is shown, done=…, halted=…, raw=the whole answer as text).
        """
        raise NotImplementedError

    async def next(self, session: str, step: str | None = None) -> Turn:
        """Go on to the next content step: flow.next.

        `step` is the step that the client says it is at; ignore it if your clients do not say.
        """
        raise NotImplementedError

    def headers(self, who: Login) -> Mapping[str, str]:
        """Return the request headers that sign this person (who.kind "dashboard") or customer's backend ("api") in.

        For example {"authorization": "Bearer …"} or {"cookie": "session=…"}; your `Host` must recognise them.
        """
        raise NotImplementedError

    # Only with the profile that is named.

    async def trigger(self, ref: TriggerRef) -> None:
        """Profile "logic": fire this trigger on the server, as your host does when a survey is answered."""
        raise NotImplementedError

    async def save(self, who: Login, flow: Flow) -> Sequence[Mapping[str, Any]]:
        """Profile "editing": save the flow as its author does; return the config problems that the author is shown."""
        raise NotImplementedError

    async def preview(self, who: Login, flow: str, node: Action) -> Mapping[str, Any]:
        """Profile "editing": return the preview of the node that the flow's author is shown."""
        raise NotImplementedError

    async def fail_commit(self) -> None:
        """Profile "durability": make the commit fail with which your host keeps the next run that is opened, once."""
        raise NotImplementedError

    async def fail_database(self, fails: bool) -> None:
        """Profile "durability", optional: make your own queries in Host.signing_secret fail from now on, or work again."""
        raise NotImplementedError

    async def handled(self, event_id: str) -> int:
        """Profile "inbound": return how often your own data say that your host has handled this event."""
        raise NotImplementedError

    async def fail_auth_event(self, event_id: str) -> None:
        """Profile "inbound": make your host fail when it handles this event next, once, as if its database had failed."""
        raise NotImplementedError


@asynccontextmanager
async def make_host(env: Env) -> AsyncIterator[MyDriver]:
    """Make the host. The kit calls this several times, sometimes for two hosts at once, and in child processes.

    Hand env.settings on to your `Host.settings`, unchanged: they hold the plugin's database, keys and URLs. Keep files
    in env.state_dir, and tables in env.database_url; both are the same ones again after a restart.
    """
    # Make the app here, with env.settings and env.database_url, and give it to the driver instead of None.
    yield MyDriver(env, app=None)
    # Close here what you opened above.
