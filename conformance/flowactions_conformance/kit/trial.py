"""One run of one check: ids of its own, what it may do to the host, and what it can see of the effects."""

from __future__ import annotations

import re
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import httpx

from flowactions_conformance.kit.hosts.hosting import IN_PROCESS, OPTIONAL
from flowactions_conformance.kit.hosts.limits import Late
from flowactions_conformance.kit.outcomes import (
    CheckFailed,
    CommonCause,
    DriverFault,
    Moment,
    NotTestable,
    NotTried,
)
from flowactions_conformance.kit.parts import Parts
from flowactions_conformance.kit.probing.control import Event
from flowactions_conformance.kit.probing.plugin import ROUTES, TOKEN
from flowactions_conformance.kit.registry import Check
from flowactions_conformance.kit.session import Host, Session
from flowactions_conformance.kit.support.compare import ADDED, difference
from flowactions_conformance.kit.under_test import Flow, Login, Turn, World
from flowactions_conformance.kit.values import Values
from flowactions_conformance.receiver import Arrival
from flowactions_conformance.receiver.verify import verify
from flowactions_conformance.serving import NO_TIMEOUT, NO_TLS
from flowactions_hookspecs.checks import id_fault, path_id_fault

MAX_MOMENTS: Final = 200
MAX_LOGGED: Final = 100
SHOWN_LOGGED: Final = 20
SERVER_ERROR: Final = re.compile(r"\b5\d\d\b")
"""In what a driver raises whose request got such an answer."""
OVERLOAD: Final = (
    "did not answer within",
    "the database failed:",
    "TimeoutError",
    "deferred nodes wait:",
    "deferred nodes run without their user",
    "too many clients already",
    "remaining connection slots are reserved",
)
"""In what is logged when the plugin could not do its part, or the host did not answer it in time; and in the errors of PostgreSQL
when it refuses a connection. The hosts of a run may need more connections than the server allows."""
POLL_SECONDS: Final = 0.05
ABOUT_IDS: Final = "HTTP-12"
"""The check that tells of ids which the contract does not allow."""
MAX_SHOWN: Final = 300


class Trial(Parts):
    """What a check is given.

    Attributes:
        host: the host that is used unless another is named.
        values: draws the check's values.
        saw_overload: whether it was logged meanwhile that the database or the host did not answer in time, or that the database
            took no more connections.
        saw_wrong_value: whether the check fails by what no slow machine excuses.
    """

    def __init__(self, session: Session, check: Check, host: Host | None) -> None:
        self.values = Values(f"{session.seed}/{check.id}")
        shapes = {"top", "loop", "branch"} - session.lacks if "loops" in session.claims else {"top"}
        super().__init__(check.id, session.receiver_url, self.values.draw.sample(sorted(shapes), k=len(shapes)))
        self.session = session
        self.check = check
        self.timeline: list[Moment] = []
        self._host = host
        self._own: list[Host] = []
        self._began, self._began_at = time.monotonic(), time.time()
        self._logged: deque[tuple[float, str]] = deque(maxlen=MAX_LOGGED)
        self._saw_server_error = False
        self.saw_overload = self.saw_wrong_value = False
        self._stop_listening = session.control.listen(self._reported)
        self._stop_reading = session.output.listen(self._printed)

    @property
    def is_served(self) -> bool:
        """Whether somebody else has started the host."""
        return self.session.served is not None

    @property
    def host(self) -> Host:
        """The host that this check uses."""
        if self._host is None:
            raise AssertionError(f"{self.check.id} starts its own hosts, and has started none")
        return self._host

    @host.setter
    def host(self, host: Host) -> None:
        self._host = host

    def end(self) -> None:
        """Has the timeline end; the check is over, and its own hosts are stopped. What arrived meanwhile is added, each at its time."""
        self.session.release(self._own)
        self._stop_listening()
        self._stop_reading()
        if self._saw_server_error:
            self.timeline += [Moment(at=at, source="log", text=line[:500]) for at, line in self._logged]
        self.timeline += [
            Moment(at=max(0.0, arrival.at - self._began_at), source="receiver", text=str(arrival)[:500])
            for arrival in self.arrivals()
        ]
        self.timeline += [
            Moment(
                at=max(0.0, float(message.ts) - self._began_at),
                source="provider",
                text=f"post to {message.channel}: {message.text}"[:500],
            )
            for message in self.session.provider.messages
            if self.token in message.text
        ]
        self.timeline.sort(key=lambda moment: moment.at)
        del self.timeline[MAX_MOMENTS:]

    def logged(self) -> tuple[str, ...]:
        """Return the newest lines that the host has printed and logged, if it has answered a server error."""
        lines = [line for _, line in self._logged if line] if self._saw_server_error else []
        return tuple(lines[-SHOWN_LOGGED:])

    def _printed(self, lines: Sequence[str]) -> None:
        now = time.monotonic() - self._began
        self._logged.extend((now, line) for line in lines)
        # Not by `|=`: several threads print, and one could overwrite what another one has set.
        if any(sign in line for line in lines for sign in OVERLOAD):
            self.saw_overload = True

    # What a check says

    def note(self, source: str, text: str) -> None:
        """Add a line to the timeline."""
        if len(self.timeline) < MAX_MOMENTS:
            self.timeline.append(Moment(at=time.monotonic() - self._began, source=source, text=text[:500]))

    def expect(
        self,
        holds: object,
        message: str,
        *,
        expected: object = "",
        actual: object = "",
        causes: Sequence[str] = (),
    ) -> None:
        """Fails the check unless something holds.

        Args:
            holds: anything; its truth counts.
            message: what is wrong when it does not, in one sentence.
            expected: what the contract asks for.
            actual: what was observed.
            causes: what usually causes it; the check's own by default.

        Raises:
            CheckFailed: it does not hold.
        """
        if not holds:
            raise CheckFailed(message, expected=expected, actual=actual, causes=causes or self.check.causes)

    def equal(self, actual: object, expected: object, message: str, causes: Sequence[str] = ()) -> None:
        """Fails the check unless two values are equal."""
        self.expect(actual == expected, message, expected=expected, actual=actual, causes=causes)

    def same(self, actual: object, expected: object, message: str, added: Sequence[str] = ()) -> None:
        """Fails the check unless two JSON values are equal; the message ends with the first difference.

        Args:
            actual: what was observed.
            expected: what it should be.
            message: what is wrong, without the difference.
            added: what usually causes it, if something was added; the check's own by default.
        """
        found = difference(expected, actual) or ""
        # Of a long value, the difference is enough.
        shown = (expected, actual) if len(repr(expected)) <= MAX_SHOWN else ("", "")
        causes = added if found.endswith(ADDED) else ()
        self.expect(not found, f"{message}: {found}", expected=shown[0], actual=shown[1], causes=causes)

    def answers(
        self,
        answer: httpx.Response,
        good: object,
        message: str,
        expected: object = "",
        causes: Sequence[str] = (),
    ) -> None:
        """Fails the check unless an answer is as it should be; ``good`` is that, or the status that it must have."""
        if type(good) is int:
            good, expected = answer.status_code == good, expected or good
        said = (str(answer.status_code), answer.headers.get("location"), answer.text[:500])
        actual = " ".join(filter(None, said))
        self.expect(good, message, expected=expected, actual=actual, causes=causes)

    # What a check does to the host

    async def seed(self, *flows: Flow, world: World | None = None, host: Host | None = None) -> None:
        """Has the host make this check's organization, agent, author and flows, or another world.

        Raises:
            NotTried: one of the host's ids is none that the contract allows: the plugin refuses it everywhere.
        """
        world = world or self.world(*flows)
        self.note("kit", f"seed {len(world.flows)} flows")
        self.ids.update(await self.call("seed", world, host=host))
        fault = self.id_fault(world)
        if fault and self.check.id not in {ABOUT_IDS, "PREFLIGHT-0"}:
            raise NotTried(f"{fault}, as {ABOUT_IDS} says")

    def id_fault(self, world: World) -> str:
        """Return in words what is wrong with one of the host's ids; empty: nothing is."""
        in_paths = {each.id for each in world.agents} | {each.id for each in world.experiences}
        for kit_id, id_ in {**{each: each for each in in_paths}, **self.ids}.items():
            if (fault := path_id_fault(id_) if kit_id in in_paths else id_fault(id_)) is not None:
                return f"the host's id {id_[:MAX_SHOWN]!r} of {kit_id} {fault}"
        return ""

    async def call(self, method: str, *arguments: object, host: Host | None = None) -> Any:
        """Call a method of the host's driver.

        Raises:
            NotTestable: the driver does not have it.
            NotTried: nor need it.
        """
        try:
            return await (host or self.host).running.call(method, *arguments)
        except NotImplementedError:
            lacks = f"the driver has no {method}()"
            may_lack = method in OPTIONAL or (self.is_served and method in IN_PROCESS)
            raise (NotTried(lacks) if may_lack else NotTestable(lacks)) from None
        except DriverFault as exc:
            self._saw_server_error |= SERVER_ERROR.search(str(exc)) is not None
            if "429 Too Many Requests" in str(exc):
                raise _limited(str(exc)) from None
            raise

    async def open(self, flow: Flow, user: str | None = None, content: str = "content") -> Turn:
        """Open a flow as an end user."""
        self.note("kit", f"open {flow.id}")
        user = self.id("user") if user is None else user
        turn: Turn = await self.call("open", self.of_host(flow.id), user, content)
        self.note("host", f"answers step {turn.step_id}, done {turn.done}, halted {turn.halted}")
        return turn

    async def next(self, turn: Turn, step: str | None = None, host: Host | None = None) -> Turn:
        """Goes on from a turn; ``step`` is what the client says it is at, the host's id."""
        where = f" in host {host.name}" if host is not None else ""
        self.note("kit", f"next from {step or turn.step_id}{where}")
        after: Turn = await self.call("next", turn.session, step or turn.step_id, host=host)
        self.note("host", f"answers step {after.step_id}, done {after.done}, halted {after.halted}{where}")
        return after

    async def request(
        self,
        method: str,
        path: str,
        *,
        who: Login | None = None,
        host: Host | None = None,
        headers: Mapping[str, str] | Sequence[tuple[str, str]] = (),
        noted: str = "",
        **sending: Any,
    ) -> httpx.Response:
        """Send a request to a route of the plugin below the host's prefix, or to a whole URL; redirects are not followed.

        The timeline shows the method and the path, or what is ``noted`` in their place.
        """
        host = host or self.host
        url = path if path.startswith(host.url) else f"{host.url}{host.prefix}{path}"
        path = url.removeprefix(host.url)
        own: dict[str, str] = {} if who is None else await self.call("headers", who, host=host)
        if ROUTES in path:
            own = {**own, TOKEN: self.session.control.token}
        pairs = [*own.items(), *(headers.items() if isinstance(headers, Mapping) else headers)]
        # As bytes: what a header holds need not be ASCII.
        both = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs]
        async with httpx.AsyncClient(trust_env=False, verify=NO_TLS, timeout=NO_TIMEOUT) as client:
            asking = client.request(method, url, headers=both, follow_redirects=False, **sending)
            try:
                answer = await self.session.patience.wait(asking, "request")
            except (httpx.TransportError, Late) as exc:
                raise CheckFailed(
                    f"{method} {path} got no answer",
                    expected="an answer",
                    actual=f"{type(exc).__name__}: {exc}",
                    causes=self.check.causes,
                ) from exc
        if answer.status_code == 429 and b'"rate_limited"' not in answer.content:
            raise _limited(f"{method} {path} → 429 {answer.text[:500]}")
        self._saw_server_error |= answer.status_code >= 500
        self.note("host", f"{noted or f'{method} {path}'} → {answer.status_code} {answer.text[:200]}")
        return answer

    async def enqueue(self, name: str, host: Host | None = None, **fields: object) -> dict[str, Any]:
        """Has the probe enqueue a webhook that goes to `hook` of that name."""
        body = {
            "organization_id": self.of_host(self.organization),
            "url": self.hook(name),
            "entity": self.id(name),
            **fields,
        }
        answer = await self.request("POST", f"{ROUTES}/enqueue", host=host, json=body)
        self.answers(answer, 200, "the plugin could not enqueue a webhook")
        receipt: dict[str, Any] = answer.json()
        return receipt

    def logic_path(self, agent: str, experience: str = "nothing") -> str:
        """Return the path at which a backend triggers actions of an agent's experience (kit ids)."""
        of_agent, of_experience = (quote(self.of_host(each), safe="") for each in (agent, experience))
        return f"/v1/agents/{of_agent}/experiences/{of_experience}/logic-webhook"

    async def start(self, **options: Any) -> Host:
        """Start a host of this check's own; see `Session.start`."""
        self.note("kit", "start a host")
        host = await self.session.start(**options)
        if not self.is_served:
            self._own.append(host)
        if self._host is None:
            self._host = host
        return host

    async def stop(self) -> None:
        """Stop the host as its server does on SIGTERM.

        Raises:
            DriverFault: it did not stop, or failed while it did.
        """
        self.note("kit", "stop the host")
        await self.host.running.stop()

    async def kill(self) -> None:
        """End the host's process with SIGKILL."""
        self.note("kit", "kill the host's process")
        await self.host.running.kill()

    def open_gate(self, name: str) -> None:
        """Open a gate for the probe nodes that wait there."""
        self.note("kit", f"open gate {name}")
        self.session.control.open_gate(self.gate(name))

    def gate(self, name: str) -> str:
        """Return a gate's name for a probe node's config."""
        return f"{self.token}/{name}"

    # What a check sees

    def reached(self, node: str | None = None, kind: str = "reach") -> list[Event]:
        """Return the probe's reports of nodes of this check that were reached, oldest first.

        Args:
            node: only of this node, as it was named.
            kind: ``reach`` (it began), ``reached`` (it ended) or ``recorded`` (if its config says ``told``).
        """
        return [
            event
            for event in self.session.control.events
            if event.kind == kind
            and (config := event.data["node"]["config"]).get("token") == self.token
            and bool(config.get("paced")) is (self.pacing == "deferred")
            and (node is None or event.data["node"]["id"] == self.of_host(self.id(node)))
        ]

    def ran(self, since: int = 0) -> list[str]:
        """Return the names of the probe nodes that ran, in the order in which they ended, from the ``since``-th on."""
        return [str(event.data["node"]["config"].get("name")) for event in self.reached(kind="reached")[since:]]

    def reports(self, kind: str, host: Host | None = None) -> list[Event]:
        """Return the probe's reports of a kind from a host."""
        name = (host or self.host).name
        return [event for event in self.session.control.events if event.kind == kind and event.host == name]

    def arrivals(self, name: str | None = None) -> list[Arrival]:
        """Return what arrived at `hook` of that name, or of any name of this check."""
        below = f"/{self.token}/"
        return [
            arrival
            for arrival in self.session.arrivals
            if (arrival.path.endswith(f"{below}{self._now(name)}") if name else below in arrival.path)
        ]

    def signature_of(self, arrival: Arrival, secret: str) -> str:
        """Return ``verified``, ``unsigned``, ``wrong`` or ``stale``: a request's signature, checked with this secret."""
        return verify(secret, dict(arrival.headers), arrival.body.encode(), arrival.at)

    async def until(
        self,
        holds: Callable[[], object],
        message: str,
        *,
        expected: object = "",
        causes: Sequence[str] = (),
        at_least: float = 0.0,
    ) -> None:
        """Wait until something holds, looking again after each report and arrival.

        Args:
            holds: asked each time.
            message: what is wrong when it does not come to hold.
            expected: what the contract asks for.
            causes: what usually causes it; the check's own by default.
            at_least: seconds to wait for what the plugin itself does only after a lease has ended.

        Raises:
            CheckFailed: it did not come to hold.
        """
        waiting = self.session.control.until(lambda: bool(holds()))
        try:
            await self.session.patience.wait(waiting, "effect", at_least=at_least)
        except Late as late:
            self.expect(holds(), message, expected=expected, actual=str(late), causes=causes)

    async def until_arrived(self, name: str, count: int = 1) -> list[Arrival]:
        """Wait until that many requests have arrived at `hook` of that name."""
        await self.until(
            lambda: len(self.arrivals(name)) >= count,
            f"the webhook {name!r} did not arrive{self.stands(name)}",
            expected=f"{count} request(s) at {self.hook(name)}",
        )
        return self.arrivals(name)

    async def nothing_more_is_sent(self) -> None:
        """Wait until everything that was queued before has been sent.

        Two webhooks are enqueued one after the other and awaited: rows are sent oldest first, and ticks do not
        overlap, so what was queued before has left when the second one arrives.
        """
        for number in (1, 2):
            name = f"sentinel-{number}-{secrets.token_hex(3)}"
            await self.enqueue(name)
            await self.until_arrived(name)

    def _reported(self, event: Event) -> None:
        node = event.data.get("node")
        # A call of a host's method names its node only.
        if isinstance(node, Mapping) and node.get("config", {}).get("token") == self.token:
            self.note("probe", f"{event.kind} {node['id']} in process {event.pid}")
        elif self._host is not None and event.host == self._host.name and self.check.alone:
            self.note("probe", f"{event.kind} in process {event.pid}")


def _limited(actual: str) -> CommonCause:
    return CommonCause(
        "a rate limiter of the host, or before it, answers 429 to the kit",
        expected="no limit, or a high one, for the host that is tested",
        actual=actual,
        causes=(
            "the limit of the host, or of a proxy before it, is lower than what the kit sends: raise it for the test",
        ),
    )
