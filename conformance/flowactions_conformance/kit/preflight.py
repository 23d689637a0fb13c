"""Before any check: whether the driver does its part, so that a fault of the driver is not taken for one of the host."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import Final

from flowactions_conformance.kit.bench import AUTH_SECRET
from flowactions_conformance.kit.outcomes import CheckFailed, DriverFault, NotTestable
from flowactions_conformance.kit.probing.plugin import HOST_SETTING, ROUTES, digest
from flowactions_conformance.kit.registry import PROFILES, Check
from flowactions_conformance.kit.session import Host, Session
from flowactions_conformance.kit.trial import Trial
from flowactions_conformance.kit.under_test import Turn
from flowactions_conformance.variables import PREFIX

COMMIT_SECONDS: Final = 1.0
"""How long a host that answers before its commit may take for it, to be told so."""

PUBLIC_URL: Final = "BACKEND_PUBLIC_URL"
SELF = Check("PREFLIGHT-0", "core", "The driver does its part", "", (), lambda _: asyncio.sleep(0))


async def preflight(session: Session, *, sends_events: bool) -> Host:
    """Start the host that checks share, and try each method of the driver that ``core`` needs once.

    Args:
        session: open.
        sends_events: whether one of the checks sends events of the auth provider.

    Returns:
        The host. `Session.claims` is set.

    Raises:
        DriverFault: the driver does not do its part; the message says what to do.
    """
    host = await session.start()
    claims = frozenset(host.running.about.claims)
    _check_claims(claims)
    session.claims = claims | {"core"}
    session.lacks = frozenset(host.running.about.lacks)
    if session.served is not None:
        await _check_served(session, host)
    _check_settings(session, host)
    session.takes_events = sends_events and "inbound" in claims
    if session.takes_events and session.served is None:
        # Only such a host has the method that makes the setting of the events' secret a valid one.
        # A check tells of a host that does not stop.
        with suppress(DriverFault):
            await host.running.stop(judged=False)
        host = await session.start()
    trial = Trial(session, SELF, host)
    loaded = bool(trial.reports("loaded"))
    if loaded and not trial.reports("opened"):
        # Perhaps the first request opens it. A check says that this is late.
        with suppress(CheckFailed):
            await trial.request("GET", f"{ROUTES}/echo")
    if trial.reports("opened") or not loaded:
        await _check_driver(trial)
    # Else nothing that a driver does can work, and a check says that the plugins' lifespan is not open.
    return host


def _check_claims(claims: frozenset[str]) -> None:
    for claim in sorted(claims - set(PROFILES)):
        close = difflib.get_close_matches(claim, PROFILES, n=1)
        hint = f", did you mean {close[0]!r}" if close else ""
        raise DriverFault(
            f"claims names the unknown profile {claim!r}{hint}; profiles are {', '.join(PROFILES)}"
        )


async def _check_served(session: Session, host: Host) -> None:
    """See that something answers at the host's address, and that the probe is in it."""
    if "inbound" in session.claims and AUTH_SECRET not in host.running.env.settings:
        raise DriverFault(
            "the driver claims inbound: start serve-env with --inbound, and your host with what it writes then"
        )
    trial = Trial(session, SELF, host)
    try:
        await trial.request("GET", f"{ROUTES}/echo")
    except CheckFailed as exc:
        raise DriverFault(
            f"nothing answers at {host.url}: start your host before the run, or correct the --url of serve-env"
        ) from exc
    if not trial.reports("loaded"):
        raise DriverFault(
            f"the host at {host.url} has not loaded the probe: start it with the environment that serve-env writes, after "
            "serve-env. A host that has that environment, and does not load installed plugins (FlowActions.load), fails LOAD-1"
        )


def _check_settings(session: Session, host: Host) -> None:
    """Compare what the plugin was given with what the factory was given.

    A host that loads no plugin says nothing here: a check tells of that.
    """
    given = {name: value for name, value in host.running.env.settings.items() if not name.startswith(PREFIX)}
    loaded = [event for event in session.control.events if event.kind == "loaded"]
    if not loaded:
        return
    got = dict(loaded[-1].data["settings"])
    what, whose = (
        "env.settings",
        "The factory has to hand them on unchanged, for example MyHost(settings=env.settings)",
    )
    if session.served is not None:
        what = "the settings that serve-env has written last"
        whose = "Start the host with them, and hand its environment on: MyHost(settings=os.environ)"
    if lacking := sorted(given.keys() - got.keys()):
        raise DriverFault(f"{what} do not reach the plugin, Host.settings lacks {', '.join(lacking)}. {whose}")
    changed = {name for name in given if got[name] != digest(given[name]) and name != HOST_SETTING}
    paths = accumulate(host.prefix.split("/"), lambda path, part: f"{path}/{part}")
    if got[PUBLIC_URL] in {digest(f"{host.url}{path}") for path in paths}:
        changed.discard(PUBLIC_URL)  # with the path at which the host's app is mounted, as that setting says
    if changed:
        raise DriverFault(f"{what} reach the plugin changed: {', '.join(sorted(changed))}. {whose}")


async def _check_driver(trial: Trial) -> None:
    eager = trial.flow(trial.step("only"))
    paced = trial.flow(trial.step("one"), trial.step("two"), pacing="deferred", name="paced")
    opened: list[Turn] = []

    async def turns() -> None:
        opened.append(await trial.open(eager))
        opened.append(await trial.open(paced))

    async def go_on() -> None:
        if not opened:
            return
        try:
            await trial.next(opened[-1])
        except DriverFault as exc:
            await asyncio.sleep(COMMIT_SECONDS)
            try:
                await trial.next(opened[-1])
            except DriverFault:
                raise exc from None
            raise DriverFault(
                f"open() answers before the host has kept the run: next() at once failed, and {COMMIT_SECONDS:.0f} second later it"
                f" worked. Answer after the commit (contract: What a host does, Runs). At once: {exc}"
            ) from exc

    await _try_all(
        partial(trial.seed, eager, paced),
        turns,
        go_on,
        partial(trial.call, "palette", trial.author),
        partial(trial.call, "headers", trial.author),
    )
    if not opened[0].session and not opened[0].done:
        raise DriverFault(
            "open() returned a Turn without a session that is not done: next() could not continue"
        )


async def _try_all(*uses: Callable[[], Awaitable[object]]) -> None:
    """Use one method after the other. All that the driver lacks are named at once."""
    missing: list[str] = []
    for use in uses:
        try:
            await use()
        except NotTestable as exc:
            missing.append(str(exc))
        except DriverFault:
            if not missing:
                raise
        except Exception as exc:
            raise DriverFault(str(exc)) from exc
    if missing:
        raise DriverFault("; ".join(missing))
