"""Queues alerts: rows of the outbox that belong to no organization, signed with the secret of the settings."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import select, update

from flowactions_hookspecs import DeliveryAlert, OutboundWebhook, PluginOrigin, SettingsInvalid
from flowactions_plugin.alerts.events import (
    Alert,
    DestinationFailing,
    DestinationGone,
    DestinationRecovered,
    body_of,
)
from flowactions_plugin.clock import new_id, to_iso
from flowactions_plugin.egress.destination import Destination, parse_destination
from flowactions_plugin.egress.guard import is_address
from flowactions_plugin.egress.outbound import guard_of
from flowactions_plugin.errors import EgressRefused, TooLarge
from flowactions_plugin.queue.enqueue import Outbox
from flowactions_plugin.queue.keys import KeyUse
from flowactions_plugin.queue.rules import MAX_ATTEMPTS_CAP, NewDelivery
from flowactions_plugin.settings.model import Settings
from flowactions_plugin.storage.database import Transaction
from flowactions_plugin.storage.retention import HOUR_MS
from flowactions_plugin.storage.schema import EVERY_ORGANIZATION, installation
from flowactions_plugin.storage.waiting import repeated

log = logging.getLogger("flowactions.alerts")

PLUGIN: Final = "flowactions.alerts"
NAME: Final = "alerts"
"""Plugin and name of the origin of alerts. A process that does not know their secret has no such plugin, so the rows wait
there, and none is sent unsigned."""


class Alerts:
    """Queues the alerts of one database.

    Each method that reads or writes raises `StorageUnavailable` if the database fails; nothing was written then.

    Args:
        outbox: takes them in.
        destination: where they are sent.
        secret: signs them.

    Attributes:
        destination: the same.
        secret: the same.
    """

    def __init__(self, outbox: Outbox, destination: Destination, secret: str) -> None:
        self._outbox = outbox
        self.destination = destination
        self.secret = secret
        self._installation: str | None = None

    def __repr__(self) -> str:
        return "Alerts(…)"

    async def signing_secret(self, _origin: PluginOrigin) -> str:
        """Return the secret that signs alerts."""
        return self.secret

    async def outages(self, transaction: Transaction | None = None) -> int:
        """Return how many outages of writes have ended in this installation, which is the number of the next one."""
        async with self._outbox.database.read(transaction) as connection:
            row = (await connection.execute(select(installation))).one()
        self._installation = row.id
        return int(row.outages)

    @repeated
    async def end_outage(self, number: int | None, alert: Alert) -> None:
        """Queue that an outage of writes has ended, unless another worker has queued it or its number is not known."""
        outages = installation.c.outages
        ended = update(installation).where(outages == number).values(outages=outages + 1)
        async with self._outbox.database.write() as transaction:
            if (await transaction.execute(ended)).rowcount == 1:
                await self.add(alert, transaction)

    async def delivery(
        self, alert: Alert, key: str | None = None, transaction: Transaction | None = None
    ) -> NewDelivery:
        """Return the row of an alert; nothing is written.

        Args:
            alert: what it says.
            key: alerts of one installation with the same key are the same event, also when they differ otherwise; ``None``: each
                is an event of its own.
            transaction: in which the installation's id is read.

        Raises:
            TooLarge: it is larger than a body may be.
        """
        if key is not None and self._installation is None:
            await self.outages(transaction)
        webhook = OutboundWebhook(
            organization_id=EVERY_ORGANIZATION,
            origin=PluginOrigin(organization_id=EVERY_ORGANIZATION, plugin=PLUGIN, name=NAME, id=alert.TYPE),
            event_type=alert.TYPE,
            entity=f"{self._installation}:{key}" if key else new_id(self._outbox.database.clock()),
            url=self.destination.url,
            body=body_of(alert),
            max_attempts=MAX_ATTEMPTS_CAP,
        )
        # The addresses of the name are checked when it is sent: no transaction waits for a name to resolve.
        return self._outbox.serialize(webhook, self.destination.url, self.destination.key, b"")[0]

    @repeated
    async def add(
        self, alert: Alert, transaction: Transaction | None = None, key: str | None = None
    ) -> str | None:
        """Queue an alert.

        Args:
            alert: what it says.
            transaction: that of what it is about; ``None``: one of its own.
            key: as for `delivery`. It is queued once within the window of idempotency keys.

        Returns:
            The id of its row; ``None``: it was queued before, or is too large, which is logged.
        """
        try:
            delivery = await self.delivery(alert, key, transaction)
        except TooLarge as exc:
            log.error("alert %s was not queued: %s", alert.TYPE, exc, extra={"event": "alert.not_queued"})  # noqa: TRY400
            return None
        use = None if key is None else KeyUse(self._outbox.keys, EVERY_ORGANIZATION, PLUGIN, key)
        first = await self._outbox.write(delivery, transaction, use)
        return delivery.id if first is None else None

    async def of_destinations(self, transaction: Transaction, alerts: Sequence[DeliveryAlert]) -> None:
        """Queue what the host is told of destinations, in the transaction that records that it was told.

        What a destination ends by a 410 is one alert an hour. What concerns the destination of alerts themselves is left out: it
        would never end.
        """
        now = int(self._outbox.database.clock() * 1000)
        for each in alerts:
            if each.organization_id != EVERY_ORGANIZATION:
                place = hashlib.sha256(f"{each.organization_id}\0{each.destination}".encode()).hexdigest()
                key = f"gone:{place}:{now // HOUR_MS}" if each.kind == "gone" else None
                await self.add(_of_destination(each, to_iso(now)), transaction, key)


def _of_destination(alert: DeliveryAlert, at: str) -> Alert:
    about: dict[str, Any] = {
        "occurred_at": at,
        "organization_id": alert.organization_id,
        "destination": alert.destination,
    }
    if alert.kind == "recovered":
        return DestinationRecovered(**about)
    if alert.kind == "gone":
        return DestinationGone(**about, deliveries=alert.failures, origin=alert.origin)
    since = None if alert.failing_since is None else to_iso(int(alert.failing_since.timestamp() * 1000))
    return DestinationFailing(
        **about, failing_since=since, failures=alert.failures, last_error=alert.last_error
    )


def alerts_of(settings: Settings, outbox: Outbox) -> Alerts | None:
    """Return what queues alerts; ``None``: the settings say no URL.

    Raises:
        SettingsInvalid: webhooks may not be sent to the URL.
    """
    if settings.alerts_url is None or settings.alerts_secret is None:
        return None
    guard = guard_of(settings, _unresolved)
    try:
        destination = parse_destination(settings.alerts_url)
        if is_address(destination.host):
            guard.check_address(destination.host)
    except EgressRefused as exc:
        reason = str(exc)
    else:
        return Alerts(outbox, destination, settings.alerts_secret)
    raise SettingsInvalid(f"these settings cannot be used: FLOWACTIONS_ALERTS_URL: {reason}")


async def _unresolved(_host: str, _port: int) -> Sequence[str]:
    return ()
