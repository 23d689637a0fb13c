"""What a host author writes: a factory that makes the host, and a driver through which the kit uses it.

Everything that crosses this boundary can be written as JSON, so the kit can run the same factory in a child process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias, TypeVar

from msgspec import Struct, field


class Wire(Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of the kit's structs: built by keyword, camelCase as JSON."""


class Env(Wire, frozen=True):
    """The argument of the factory.

    Args:
        settings: pass these to `Host.settings` unchanged; they contain everything that the plugin needs.
        base_url: the URL at which the kit serves the app, without a slash at its end. It is known before the app
            exists.
        state_dir: a folder for this host's files. It is the same after a restart, and for each of several
            processes of one host.
        database_url: a database for the host's tables, in the form of SQLAlchemy's asyncio drivers; on PostgreSQL
            the same database as the plugin's.
        incarnation: 1 for the first start, one more after each restart.
    """

    settings: dict[str, str]
    base_url: str
    state_dir: Path
    database_url: str
    incarnation: int = 1


class Login(Wire, frozen=True):
    """The sender of a request.

    Args:
        kind: ``dashboard`` is a person at the host's dashboard, ``api`` a customer's backend.
        organization: the kit's id of the organization.
        id: the kit's id of the person or backend.
        may_change: whether the person may change anything.
        agents: kit ids of the agents that a backend may address.
        all_agents: whether a backend may address all agents of its organization.
    """

    kind: Literal["dashboard", "api"]
    organization: str
    id: str
    may_change: bool = True
    agents: tuple[str, ...] = ()
    all_agents: bool = False


class Organization(Wire, frozen=True):
    """A tenant."""

    id: str
    name: str


class Agent(Wire, frozen=True):
    """An agent of an organization."""

    id: str
    name: str
    organization: str


class Step(Wire, frozen=True, tag_field="kind", tag="step"):
    """A content step, which the end user sees."""

    id: str
    text: str = ""


class Action(Wire, frozen=True, tag_field="kind", tag="action"):
    """An action node. ``config`` must reach `Node.config` unchanged, with unknown keys and falsy values."""

    id: str
    type: str
    config: dict[str, Any] = field(default_factory=dict)


class Branch(Wire, frozen=True, tag_field="kind", tag="branch"):
    """A branch; the run takes ``taken``. Only in worlds of the profile ``loops``."""

    id: str
    taken: tuple[Item, ...] = ()
    other: tuple[Item, ...] = ()


class Loop(Wire, frozen=True, tag_field="kind", tag="loop"):
    """Items that are walked several times. Only in worlds of the profile ``loops``."""

    id: str
    times: int
    items: tuple[Item, ...] = ()


class SubFlow(Wire, frozen=True, tag_field="kind", tag="subflow"):
    """Another flow, walked within the same run. Only in worlds of the profile ``loops``.

    Args:
        flow: the kit's id of an earlier flow of this world, or of an earlier world.
    """

    id: str
    flow: str


Item: TypeAlias = Step | Action | Branch | Loop | SubFlow


class Flow(Wire, frozen=True):
    """A flow of an agent.

    Args:
        pacing: an ``eager`` flow is walked to its end when it is opened. In a ``deferred`` flow, the user moves
            from step to step, and each action node runs when the user gets to the step after it.
    """

    id: str
    name: str
    organization: str
    agent: str
    pacing: Literal["eager", "deferred"]
    items: tuple[Item, ...] = ()


class TriggerAction(Wire, frozen=True):
    """A webhook action of a trigger."""

    url: str
    secret: str | None = None
    headers: dict[str, str] = field(default_factory=dict)


class Trigger(Wire, frozen=True):
    """A trigger and its webhook actions: of an experience's row, or of a node's trigger group.

    Args:
        id: the row's id (``triggerRowId``), or that of the trigger group (``nodeTriggerGroupId``).
        node: the node's id; ``None`` for a row of the experience.
        question: the survey question that the group belongs to.
    """

    id: str
    actions: tuple[TriggerAction, ...]
    node: str | None = None
    question: str | None = None


class Experience(Wire, frozen=True):
    """An experience of an agent, with its triggers. Only with the profile ``logic``."""

    id: str
    organization: str
    agent: str
    triggers: tuple[Trigger, ...] = ()


class World(Wire, frozen=True):
    """The data that a check needs in the host.

    Seeding again replaces the data with the same kit ids, and changes nothing else: a missing flow stays, an
    experience without a trigger loses that trigger. ``logins`` are people and backends that must be able to sign in:
    `HostDriver.headers` is called for each of them.
    """

    organizations: tuple[Organization, ...] = ()
    agents: tuple[Agent, ...] = ()
    logins: tuple[Login, ...] = ()
    flows: tuple[Flow, ...] = ()
    experiences: tuple[Experience, ...] = ()


class TriggerRef(Wire, frozen=True):
    """An action of a trigger, by kit ids. It fires on the server, without a customer's backend.

    The kit fires triggers of an experience's rows only, without ``node`` and ``question``.
    """

    organization: str
    agent: str
    experience: str
    trigger: str
    node: str | None = None
    question: str | None = None
    action_index: int = 0


class Turn(Wire, frozen=True):
    """The state of the end user's client after `open` or `next`.

    Args:
        session: the id of the run for the next call.
        step_id: the host's id of the content step that is shown; ``None`` in an eager flow, before the first step and
            after the end. The kit passes it to the next `next` unchanged. In a loop, it may be the same in each round.
            But the step ids that the plugin gets, in ``Deferred`` and in ``advance``, belong to one passage each.
        done: whether the run has ended.
        halted: whether it ended because a node halted it.
        raw: everything that the client received, for example the body of the answer. The kit looks for secrets in it.
    """

    session: str
    step_id: str | None = None
    done: bool = False
    halted: bool = False
    raw: str = ""


class HostDriver:
    """The host, as the kit uses it: the base of your driver.

    A method that you do not write raises ``NotImplementedError``, and the kit says which method that is.
    """

    claims: frozenset[str] = frozenset()
    """Profiles beyond ``core`` that the host wants to be tested for."""
    app: Any = None
    """The ASGI app. The kit serves it and runs its lifespan. A host that you have started yourself needs none."""
    prefix: str = ""
    """The path before the plugin's routes, for example ``/api``; empty: no path."""
    edits: Literal["pinned", "live"] | None = None
    """Which steps an end user sees if the flow is edited during the run. ``pinned``: those of the version in which the run
    was opened. ``live``: those of the newest version. ``None``: the host promises neither."""
    lacks: frozenset[str] = frozenset()
    """Kinds of items that the host does not have, although it claims ``loops``: ``branch``, ``subflow``, or both. Then
    no world contains them, and nothing is proved about them."""

    async def seed(self, world: World) -> Mapping[str, str]:
        """Make the data of the world, or replace existing data.

        Returns:
            Kit id → the host's id, for everything in the world that has another id in the host than in the kit.
        """
        raise NotImplementedError

    async def palette(self, who: Login) -> Sequence[Mapping[str, Any]]:
        """Return the node types as the host's editor gets them: the results of `NodeType.describe`."""
        raise NotImplementedError

    async def open(self, flow: str, user: str, content: str) -> Turn:
        """Open a flow (the host's id) as an end user."""
        raise NotImplementedError

    async def next(self, session: str, step: str | None = None) -> Turn:
        """Move to the next content step: ``flow.next``.

        Args:
            session: the session of the turn before.
            step: the step that the client names as its own. ``None``: the step that the host has last shown. If the
                clients of a host do not name their step, ignore it.
        """
        raise NotImplementedError

    def headers(self, who: Login) -> Mapping[str, str]:
        """Return the request headers that sign this person or backend in: a bearer token, or cookies."""
        raise NotImplementedError

    async def trigger(self, ref: TriggerRef) -> None:
        """Fire a trigger on the server. Profile ``logic``."""
        raise NotImplementedError

    async def save(self, who: Login, flow: Flow) -> Sequence[Mapping[str, Any]]:
        """Save a flow as this person does, and return the problems that an author is shown. Profile ``editing``.

        The kit also calls it for people who may not, with a flow that they call theirs: then raise what the host answers.
        """
        raise NotImplementedError

    async def preview(self, who: Login, flow: str, node: Action) -> Mapping[str, Any]:
        """Return the preview that the author of the flow (kit id) is shown for a node. Profile ``editing``."""
        raise NotImplementedError

    async def fail_commit(self) -> None:
        """Make the commit fail by which the host stores the next opened run. Profile ``durability``.

        ``open`` raises then, or the host repeats the transaction, and returns the run of the second one. No data of the first
        run may remain. If nothing fails, the check is not testable.
        """
        raise NotImplementedError

    async def failed_commits(self) -> int:
        """Return how many commits `fail_commit` has made fail. Optional, profile ``durability``.

        Only a host that repeats what failed needs it: it shows that `fail_commit` has had an effect.
        """
        raise NotImplementedError

    async def fail_database(self, fails: bool) -> None:
        """Make the host's own queries fail from now on, as if its database did not answer; or let them work again.

        The queries of `Host.node` are enough. If they do not fail, the check is not testable. Optional, profile ``durability``: without it, one check is not
        tried.
        """
        raise NotImplementedError

    async def handled(self, event_id: str) -> int:
        """Return how often the host has handled an event of the auth provider, from its own data.

        The kit sends ``user.created`` and ``organization.deleted``. Profile ``inbound``.
        """
        raise NotImplementedError

    async def fail_auth_event(self, event_id: str) -> None:
        """Make the host fail once when it next handles this event, as if its database had failed.

        Let the code that does the work fail, so that the code around it is tested. If the event is handled nevertheless, the
        check is not testable. Profile ``inbound``.
        """
        raise NotImplementedError

    async def restart(self) -> None:
        """Stop a served host as its server does on SIGTERM, start it again, and return when it serves.

        Stop all of its processes: if none has started since, the check is not testable. Only for a host that you have started yourself, and optional: without it,
        checks that need it are not tried.
        """
        raise NotImplementedError

    async def kill(self) -> None:
        """End all processes of a served host with SIGKILL, start it again, and return when it serves. See `restart`."""
        raise NotImplementedError


Factory: TypeAlias = Callable[[Env], AbstractAsyncContextManager[HostDriver]]
MARK: Final = "flowactions_one_host_per_process"
Made = TypeVar("Made", bound=Callable[[Env], object])


def one_host_per_process(factory: Made) -> Made:
    """Mark a factory whose hosts cannot share a process: the kit runs each in a child process.

    For hosts that use an object which exists once in a process, for example an engine that is a singleton.
    """
    setattr(factory, MARK, True)
    return factory
