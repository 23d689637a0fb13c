"""The auth provider's events: verified, parsed, and each handed to the host once."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, cast

from msgspec.structs import replace

from flowactions_hookspecs import AuthEvent, Host
from flowactions_plugin.clock import Clock, system_clock
from flowactions_plugin.egress.signature import sign_standard
from flowactions_plugin.errors import HostFailed, RequestInvalid
from flowactions_plugin.host_answers import ask
from flowactions_plugin.inbound import store
from flowactions_plugin.inbound.requests import PLAIN_ID, TIMESTAMP, NotAuthentic, check_signed
from flowactions_plugin.storage.database import Database, Transaction
from flowactions_plugin.storage.outages import code_of
from flowactions_plugin.storage.waiting import CONFLICTS, repeated

PROVIDER: Final = "auth"
HANDLER_SECONDS: Final = 10.0
"""How long a host's handler may take, because a transaction is open meanwhile."""

OnOrganizationDeleted = Callable[[str, Transaction], Awaitable[Callable[[], Awaitable[None]] | None]]
"""Deletes an organization's chat connection in a transaction; returns what is to be called after the commit."""

HEADERS: Final = ("svix-id", "svix-timestamp", "svix-signature")
"""As Svix names them; Standard Webhooks has ``webhook-`` for ``svix-``."""


def type_of(event: AuthEvent) -> str:
    """Return the provider's name of an event's type."""
    return event.action if event.kind == "other" else f"{event.kind}.{event.action}"


class Verifier:
    """Verifies requests of the auth provider with any of several secrets (§5.4).

    Args:
        secrets: the newest first, as the provider shows them (``whsec_…``).
        clock: Unix seconds.
    """

    def __init__(self, secrets: Sequence[str], clock: Clock = system_clock) -> None:
        self._secrets = secrets
        self._clock = clock

    def __repr__(self) -> str:
        return "Verifier(…)"

    def verify(self, headers: Mapping[str, str], body: bytes) -> AuthEvent:
        """Verify a request and parse its event.

        Args:
            headers: the request's, names in lower case, as Svix or Standard Webhooks has them.
            body: the raw bytes.

        Raises:
            NotAuthentic: no secret fits, or the timestamp is more than five minutes off; whatever the bytes.
            RequestInvalid: it is signed, but is not an event.
        """
        signed = {name: _header(headers, name) for name in HEADERS}
        missing = [name for name, value in signed.items() if not value]
        if missing:
            raise NotAuthentic("headers", f"{' and '.join(missing)} missing")
        event_id, timestamp = signed["svix-id"], signed["svix-timestamp"]
        if PLAIN_ID.fullmatch(event_id) is None or TIMESTAMP.fullmatch(timestamp) is None:
            raise NotAuthentic("header form", "the id or the timestamp does not have the scheme's form")
        number = len(self._secrets)
        which = "the one secret" if number == 1 else f"any of the {number} secrets"
        otherwise = (
            f"the signature does not fit {which} of AUTH_WEBHOOK_SIGNING_SECRET: compare with the provider's"
        )
        fits = any(_fits(secret, signed, body) for secret in self._secrets)
        check_signed(fits, self._clock() - int(timestamp), otherwise)
        return _parsed(event_id, int(timestamp), body)


def claimed_id(headers: Mapping[str, str]) -> str | None:
    """Return the id that a request names, which anybody can have written; ``None``: none that can be one."""
    event_id = _header(headers, "svix-id")
    return event_id if PLAIN_ID.fullmatch(event_id) else None


def _header(headers: Mapping[str, str], name: str) -> str:
    """Return a header under either of its names; empty: it is missing."""
    return headers.get(name, headers.get(name.replace("svix-", "webhook-"), ""))


def _fits(secret: str, signed: Mapping[str, str], body: bytes) -> bool:
    """Return whether the secret makes one of the request's signatures. The age of the request does not matter."""
    expected = sign_standard(secret, signed["svix-id"], int(signed["svix-timestamp"]), body)
    return any(
        hmac.compare_digest(expected.encode(), each.encode("utf-8", "replace"))
        for each in signed["svix-signature"].split(" ")
    )


def _parsed(event_id: str, timestamp: int, body: bytes) -> AuthEvent:
    """Parse the event of an authentic request."""
    # A process without routes imports no web framework.
    from flowactions_plugin.http.strict import parse_object  # noqa: PLC0415

    event = parse_object(body)
    name, data = event.get("type"), event.get("data")
    if not isinstance(name, str) or not 0 < len(name) <= 200:
        raise RequestInvalid("The event has no type.")
    if not isinstance(data, dict):
        raise RequestInvalid("The event has no data.")
    subject, _, action = name.partition(".")
    is_known = subject in {"organization", "user", "session"} and action
    return AuthEvent(
        provider=PROVIDER,
        event_id=event_id,
        kind=cast("Any", subject) if is_known else "other",
        action=action if is_known else name,
        occurred_at=datetime.fromtimestamp(timestamp, UTC),
        data=data,
    )


class AuthEvents:
    """Processes authentic events (§4.4).

    Args:
        host: handles them.
        database: records their ids, in the transaction in which the handler may write, too.
        on_organization_deleted: called for an organization that was deleted, in the same transaction.
    """

    def __init__(self, host: Host, database: Database, on_organization_deleted: OnOrganizationDeleted) -> None:
        self._host = host
        self._database = database
        self._on_organization_deleted = on_organization_deleted

    @repeated
    async def receive(self, event: AuthEvent) -> bool:
        """Let the host handle an event, unless it was handled before.

        Of any number of concurrent deliveries of one event, one is handled, and the others wait for it. When the handler
        raises, nothing is recorded, so the provider's next delivery is handled.

        Returns:
            Whether the event was handled before.

        Raises:
            StorageUnavailable: the database failed; nothing is recorded.
            HostFailed: the host's handler raised, or took too long; the cause says which.
        """
        after_commit = None
        async with self._database.write(as_host=True) as transaction:
            async with self._database.write(transaction) as joined:
                event_type = type_of(event)
                if not await store.record(self._database, joined, PROVIDER, event.event_id, event_type):
                    return True
                organization_id = event.data.get("id") if event_type == "organization.deleted" else None
                if isinstance(organization_id, str):
                    after_commit = await self._on_organization_deleted(organization_id, joined)
            given = replace(event, transaction=transaction if self._host.database is not None else None)
            try:
                # A SAVEPOINT cannot be released when the handler has ignored an error, or has ended the transaction.
                async with asyncio.timeout(HANDLER_SECONDS), self._database.transactions.lent(transaction):
                    await ask(self._host, "auth_event", given)
            except Exception as exc:
                if code_of(exc) in CONFLICTS:
                    raise
                raise HostFailed from exc
        if after_commit is not None:
            await after_commit()
        return False
