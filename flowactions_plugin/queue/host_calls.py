"""Calls of the host's methods from the delivery task; what they return is checked here."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from flowactions_hookspecs import (
    Delivery,
    Host,
    LogicActionOrigin,
    Origin,
    OriginGone,
    PluginOrigin,
    UnsignedTestOrigin,
)
from flowactions_hookspecs.errors import OriginUnknown
from flowactions_hookspecs.tasks import is_being_cancelled
from flowactions_plugin.errors import HostFailed
from flowactions_plugin.log_text import printable
from flowactions_plugin.queue.claimed import Attempted, Completion
from flowactions_plugin.storage.schema import EVERY_ORGANIZATION

log = logging.getLogger("flowactions.outbox")

HOST_SECONDS: Final = 5.0
"""How long the host may take to return a signing secret or to be notified; within the lease's margin."""

ASK_AGAIN_SECONDS: Final = (1.0, 10.0)
"""For how long the host is not asked for the secret of an origin for which it has failed: after the first failure, and at the
most. It doubles. A host that hangs would otherwise hold a slot of a worker for each delivery."""

REMEMBERED: Final = 1000
"""How many conditions that last are remembered; then all are forgotten, and logged again."""

SigningSecret: TypeAlias = Callable[[Origin], Awaitable[str | None]]
PluginSecrets: TypeAlias = Mapping[tuple[str, str], Callable[[PluginOrigin], Awaitable[str | None]]]
"""Plugin and origin name → what resolves the secret."""
DeliveryFinished: TypeAlias = Callable[[Delivery], Awaitable[None]]


class Episodes:
    """Remembers which conditions have begun and not ended: each is logged once, and not for each delivery."""

    def __init__(self) -> None:
        self._open: set[Hashable] = set()

    @property
    def any(self) -> bool:
        """Whether any condition holds."""
        return bool(self._open)

    def begin(self, key: Hashable) -> bool:
        """Record that a condition holds; return whether that is new, and so to be logged."""
        if key in self._open:
            return False
        if len(self._open) >= REMEMBERED:
            self._open.clear()
        self._open.add(key)
        return True

    def end(self, *keys: Hashable) -> int:
        """Record that conditions have ended; return how many of them were recorded."""
        before = len(self._open)
        self._open.difference_update(keys)
        return before - len(self._open)


class Secret(NamedTuple):
    """An origin's signing secret: its value, why the origin has none any more, or why the host could not return it.

    ``is_unknown``: it is gone only as far as the host knows now, which may be a mistake of a deployment.
    """

    value: str | None = None
    gone: str | None = None
    failed: str | None = None
    is_unknown: bool = False

    def __repr__(self) -> str:
        return "Secret(…)"


NO_SECRET: Final = Secret()


class _Failing(NamedTuple):
    """An origin whose secret the host could not return: it is asked again at ``ask_at``, after ``pause`` seconds."""

    ask_at: float
    pause: float
    secret: Secret


async def call_host(method: Callable[[Any], Any], argument: object, name: str | None = None) -> Any:
    """Call a method of the host, or a function of a plugin, and return its result.

    Args:
        method: the method, or a plugin's function.
        argument: its argument.
        name: what messages call it; ``None``: by `name_of`.

    Raises:
        HostFailed: it took too long, is not async, or was cancelled from within; the message names it.
        Exception: what the method raised.
    """
    name = name or name_of(method, argument)
    scope = asyncio.timeout(HOST_SECONDS)
    try:
        answer = method(argument)
        if not inspect.isawaitable(answer):
            raise HostFailed(f"{name} returned {type(answer).__name__}: it has to be async")
        async with scope:
            return await answer
    except TimeoutError as exc:
        if not scope.expired():
            raise
        raise HostFailed(f"{name} did not answer within {HOST_SECONDS:g} s") from exc
    except asyncio.CancelledError as exc:
        if is_being_cancelled():
            raise
        raise HostFailed(f"{name} was cancelled from within") from exc


def name_of(method: Callable[[Any], Any], argument: object) -> str:
    """Return the name of a host's method for people, with the host's class: of `signing_secret` by default, what it calls."""
    owner = getattr(method, "__self__", None)
    name = f"Host.{getattr(method, '__name__', 'method')}"
    if getattr(method, "__func__", None) is Host.signing_secret:
        name = "Host.logic_action" if isinstance(argument, LogicActionOrigin) else "Host.node"
    return name if owner is None else f"{name} of {type(owner).__name__}"


class SecretSource:
    """Asks the host for signing secrets (§5.3.6), and plugins for those of their own webhooks: once per origin and claim.

    The first delivery that needs an origin's secret asks in its own task, and others of that origin wait for the answer.

    Args:
        signing_secret: the host's method.
        plugin_secrets: the plugins' functions.
        unsigned_plugins: plugins of this process that have none.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        signing_secret: SigningSecret,
        plugin_secrets: PluginSecrets = MappingProxyType({}),
        unsigned_plugins: Collection[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._signing_secret = signing_secret
        self._plugin_secrets = plugin_secrets
        self._unsigned_plugins = unsigned_plugins
        self._clock = clock
        self._episodes = Episodes()
        self._failing: dict[Origin, _Failing] = {}
        self._asked: dict[Origin, asyncio.Future[Secret]] = {}

    def renew(self) -> None:
        """Forget what was answered: deliveries of another claim begin. What is being asked is not asked twice."""
        self._asked = {origin: answer for origin, answer in self._asked.items() if not answer.done()}

    async def of(self, origin: Origin) -> Secret:
        """Return the secret of an origin; wait for it only when the host does not answer at once."""
        answer = self._asked.get(origin)
        if answer is None:
            answer = self._asked[origin] = asyncio.get_running_loop().create_future()
            try:
                answer.set_result(await self._ask(origin))
            except BaseException:
                answer.cancel()
                del self._asked[origin]
                raise
        return answer.result() if answer.done() else await asyncio.shield(answer)

    async def _ask(self, origin: Origin) -> Secret:
        failing = self._failing.get(origin)
        if failing is not None and self._clock() < failing.ask_at:
            return failing.secret
        if isinstance(origin, UnsignedTestOrigin):
            return NO_SECRET
        resolve: Callable[[Any], Any] | None = self._signing_secret
        name = name_of(self._signing_secret, origin)
        if isinstance(origin, PluginOrigin):
            if origin.plugin in self._unsigned_plugins:
                return NO_SECRET
            resolve = self._plugin_secrets.get((origin.plugin, origin.name))
            name = f"the resolver of origin {origin.name!r} of plugin {origin.plugin!r}"
        if resolve is None:
            reason = f"this process does not have {name}"
            if self._episodes.begin(reason):  # once for all origins
                log.error("deliveries wait: %s", reason, extra={"event": "deliveries.wait_for_host"})
            return Secret(failed=reason)
        try:
            secret = Secret(value=_checked(name, await call_host(resolve, origin, name)))
        except OriginGone as exc:
            secret = Secret(gone=str(exc), is_unknown=isinstance(exc, OriginUnknown))
        except Exception as exc:  # noqa: BLE001  whatever a host raises
            return self._failed(origin, name, exc)
        if self._failing.pop(origin, None) is not None:
            log.info("%s answers again for %r", name, origin, extra={"event": "host.answers_again"})
        return secret

    def _failed(self, origin: Origin, name: str, error: Exception) -> Secret:
        """Return why an origin's deliveries wait; it is logged once, and the host is not asked for a while."""
        failed, before = isinstance(error, HostFailed), self._failing.get(origin)
        secret = Secret(failed=str(error) if failed else f"{name} raised {type(error).__name__}")
        if before is None:
            if len(self._failing) >= REMEMBERED:
                self._failing.clear()
            # The traceback once, however many origins it happens to.
            shown = error if self._episodes.begin(secret.failed) and not failed else None
            log.error(
                "deliveries of %r wait: %s",
                origin,
                secret.failed,
                exc_info=shown,
                extra={"event": "deliveries.wait_for_host"},
            )
        pause = ASK_AGAIN_SECONDS[0] if before is None else min(2 * before.pause, ASK_AGAIN_SECONDS[1])
        self._failing[origin] = _Failing(self._clock() + pause, pause, secret)
        return secret


def _checked(name: str, answer: object) -> str | None:
    """Return a signing secret that can be used; an empty one is none (§5.3.7): signing with it would only look safe."""
    if not isinstance(answer, str | None):
        raise HostFailed(f"{name} returned {type(answer).__name__}, which is neither str nor None")
    try:
        (answer or "").encode()
    except UnicodeEncodeError:
        # Not chained: the error holds the secret.
        raise HostFailed(f"{name} returned text that is not valid Unicode") from None
    return answer or None


async def tell_host(method: DeliveryFinished, completion: Completion) -> None:
    """Notify the host of a delivery that has ended; best effort."""
    delivery, status = completion.delivery, completion.status
    outcome = completion.outcome if isinstance(completion, Attempted) else None
    # An unreadable origin is nothing that a host could find it by, and an alert it has not enqueued.
    if delivery.origin is None or delivery.organization_id == EVERY_ORGANIZATION:
        return
    if status != "delivered" and status != "dead":  # noqa: PLR1714  narrows the type
        return
    finished = Delivery(
        id=delivery.id,
        organization_id=delivery.organization_id,
        agent_id=delivery.agent_id,
        origin=delivery.origin,
        event_id=delivery.event_id,
        event_type=delivery.event_type,
        url=delivery.url,
        status=status,
        attempts=delivery.attempts + (outcome is not None),
        status_code=outcome.status_code if outcome else None,
        error=outcome.error if outcome else completion.reason,
    )
    try:
        await call_host(method, finished)
    except Exception:
        log.exception(
            "the host failed to take note of delivery %s",
            printable(delivery.id),
            extra={"event": "host.method_failed"},
        )
