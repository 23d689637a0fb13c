"""One attempt: sign, send, read the start of the response, all under one deadline."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from functools import lru_cache
from typing import Final, Literal, TypeAlias

from flowactions_plugin.clock import Clock, lease_clock
from flowactions_plugin.egress.attempt import (
    DEADLINE_SECONDS,
    FLAWED,
    SLOW_MS,
    Aborted,
    Message,
    Outcome,
    Progress,
    Request,
    Response,
    Transport,
    retry_after,
)
from flowactions_plugin.egress.destination import Destination
from flowactions_plugin.egress.lag import Deadline, LagMeter
from flowactions_plugin.egress.resources import shortage
from flowactions_plugin.egress.signature import (
    attempt_headers,
    event_id_of,
    keyed,
    keyed_standard,
    sign,
    sign_standard,
    with_standard_headers,
)
from flowactions_plugin.egress.transport_errors import THROUGH_PROXY, no_tunnel
from flowactions_plugin.egress.tunnel import REFUSALS, ProxyFailed, asks_for_credentials, not_authorized
from flowactions_plugin.errors import EgressRefused, HostFailed, SendFailed

log = logging.getLogger("flowactions.outbox")

UNEXPECTED: Final = "the attempt failed unexpectedly; the log of the service has the details"

Validate: TypeAlias = Callable[[str], Awaitable[Destination]]
"""Parses a stored URL by the rules for an authored one; raises `EgressRefused`."""


class Sender:
    """Makes attempts through one transport (§4.5, §5.3.1, §8).

    Args:
        transport: sends the requests.
        validate: parses a URL, and checks what the transport does not check itself.
        clock: Unix seconds, for the signature's timestamp.
        timer: monotonic seconds, for durations.
        lag: measures how long this process stood still; ``None``: it never does.
        deadline_seconds: the total time of one attempt.
        times_all: whether the outcome of each attempt that delivers has the times of its phases, and not of slow ones only.
        standard_webhooks: whether requests carry the headers of Standard Webhooks, too (§5.3.8).
    """

    def __init__(
        self,
        transport: Transport,
        validate: Validate,
        clock: Clock,
        timer: Callable[[], float],
        lag: LagMeter | None = None,
        deadline_seconds: float = DEADLINE_SECONDS,
        *,
        times_all: bool = False,
        standard_webhooks: bool = False,
    ) -> None:
        self._transport = transport
        self._validate = validate
        self._clock = clock
        self._timer = timer
        self.lag = LagMeter(lease_clock) if lag is None else lag
        self._deadline_seconds = deadline_seconds
        self._times_all = times_all
        self._standard_webhooks = standard_webhooks
        self._keyed = lru_cache(64)(keyed)
        self._keyed_standard = lru_cache(64)(keyed_standard)
        self._closed = False

    async def send(self, message: Message, secret: str | None, *, forgives: bool = True) -> Outcome | Aborted:
        """Make one attempt, unsigned without a secret. Whatever the receiver does is an outcome, never an exception.

        If it fails for a reason of this side, it is `Aborted`; so is, if ``forgives``, one that failed while this process
        stood still.
        """
        now = self._clock()
        started = self._timer()
        progress = Progress()
        destination: Destination | None = None
        response: Response | None = None
        failure: Exception | None = None
        lost_before = self.lag.lost()
        deadline = Deadline(self.lag, self._deadline_seconds)
        try:
            with deadline:
                destination = await self._validate(message.url)
                headers = self._headers(message, secret, int(now))
                request = Request(message.method, destination, headers, message.body, progress)
                response = await self._transport.send(request)
        except Exception as exc:  # noqa: BLE001  the stack beneath raises far more than it documents
            failure = exc
        started_at, duration = int(now * 1000), int((self._timer() - started) * 1000)
        lost = self.lag.lost() - lost_before
        response = response or progress.response  # cut short, it counts by its status
        if response is None:
            assert failure is not None  # noqa: S101  or there were a response
            refused = isinstance(failure, EgressRefused) or (
                progress.blamed is True and isinstance(failure, ProxyFailed) and failure.status in REFUSALS
            )
            timed_out = deadline.expired
            aborted = None if refused else self._aborted(failure, progress, lost, timed_out=timed_out)
            if aborted is not None and (forgives or aborted.cause != "stall"):
                return aborted
            return Outcome(
                started_at,
                duration,
                error=self._error_message(failure, progress, destination, timed_out=timed_out),
                final=refused,
                phases=progress.phases(),
                notes=progress.notes,
                stalled_ms=int(lost * 1000),
            )
        code, asked = response.status_code, None
        if response.flawed:
            progress.notes += (FLAWED,)
        if progress.relayed is not None:
            if asks_for_credentials(code, response.headers):
                return _proxy_failed(not_authorized(progress.relayed), "proxy")
            progress.notes += (THROUGH_PROXY,)
        if code in {429, 503}:
            asked = retry_after(response.headers.get("retry-after", ""), now)
        is_timed = self._times_all or duration >= SLOW_MS or not 200 <= code < 300
        return Outcome(
            started_at,
            duration,
            code,
            response=response.body_prefix,
            retry_after=asked,
            phases=progress.phases() if is_timed else None,
            notes=progress.notes,
            stalled_ms=int(lost * 1000),
        )

    def _aborted(
        self, failure: Exception, progress: Progress, lost: float, *, timed_out: bool
    ) -> Aborted | None:
        """Return why a failure is not the destination's or the network's; ``None`` when it is."""
        if isinstance(failure, HostFailed):
            return Aborted("host", str(failure), waits=True)
        if self._closed:
            return Aborted("stopped", "this worker has closed its connections")
        lack = shortage(failure)
        if lack is not None:
            return Aborted("resources", f"this process has no resources left for it: {lack}")
        if timed_out and progress.proxy is not None:
            failure = ProxyFailed("it did not answer in time", progress.proxy)
        if isinstance(failure, ProxyFailed) and not progress.blamed:
            return _proxy_failed(failure, "proxy" if progress.blamed is None else "tunnel")
        if lost >= self._deadline_seconds / 10:
            return Aborted("stall", f"this process stood still for {lost:.1f} s meanwhile")
        return None

    def _error_message(
        self, failure: Exception, progress: Progress, destination: Destination | None, *, timed_out: bool
    ) -> str:
        """Return why an attempt failed, for tenants."""
        if timed_out and isinstance(failure, TimeoutError):
            return f"timed out after {self._deadline_seconds:g} s while {progress.phase}"
        if isinstance(failure, ProxyFailed) and destination is not None:
            return no_tunnel(f"{destination.host}:{destination.port}", failure.reason)
        if isinstance(failure, EgressRefused | SendFailed):
            return str(failure)[:500]
        # Its text may be of Python or a library, and tenants read why an attempt failed.
        log.warning("an attempt failed unexpectedly", exc_info=failure, extra={"event": "attempt.failed"})
        return UNEXPECTED

    async def aclose(self) -> None:
        """Close the transport; a request that this interrupts is no attempt."""
        self._closed = True
        await self._transport.aclose()

    def _headers(self, message: Message, secret: str | None, timestamp: int) -> list[tuple[str, str]]:
        """Return the headers of one attempt, signed if there is a secret."""
        text, body = str(timestamp), message.body or b""
        signature = None if secret is None else sign(secret, timestamp, body, self._keyed)
        headers = attempt_headers(message.headers, text, signature)
        if not self._standard_webhooks:
            return headers
        if secret is not None:
            event_id = event_id_of(message.headers)
            signature = sign_standard(secret, event_id, timestamp, body, self._keyed_standard)
        return with_standard_headers(headers, text, signature)


def _proxy_failed(failure: ProxyFailed, cause: Literal["proxy", "tunnel"]) -> Aborted:
    """Return that a try was no attempt: the destination has had nothing, and the proxy is ours."""
    return Aborted(cause, str(failure), waits=True, detail=failure.detail)
