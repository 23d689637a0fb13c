"""Checks of ``flowactions doctor`` on egress, keys and chat tokens."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable
from typing import Final, Literal

import msgspec

from flowactions_hookspecs import FlowActionsError
from flowactions_plugin.chat.failures import ChatRefused, advice
from flowactions_plugin.chat.service import build_chat, keys_of
from flowactions_plugin.chat.store import ConnectionStore, StoredConnection
from flowactions_plugin.chat.tokens import reseal, usable_token
from flowactions_plugin.cli.context import CommandContext
from flowactions_plugin.cli.frame import summary
from flowactions_plugin.clock import to_iso
from flowactions_plugin.egress.attempt import Progress, Request
from flowactions_plugin.egress.destination import parse_destination
from flowactions_plugin.egress.outbound import guard_of, outbound
from flowactions_plugin.egress.resolver import Resolver
from flowactions_plugin.egress.tunnel import PROXY_AUTHENTICATION_REQUIRED, ProxyFailed
from flowactions_plugin.errors import EgressRefused, NotConfigured, SendFailed
from flowactions_plugin.log_text import printable
from flowactions_plugin.settings.model import Settings
from flowactions_plugin.storage.retention import DAY_MS

CHAT_TOKENS: Final = 20
"""How many chat tokens are tested at the most, so that the provider does not throttle the app."""

RESOLVE_SECONDS: Final = 10.0
PROXY_SECONDS: Final = 10.0

NOWHERE: Final = "https://flowactions-doctor.invalid/"
"""A name that is never registered (RFC 6761 §6.4), so that a proxy connects to nothing."""


class Check(msgspec.Struct, kw_only=True, rename="camel"):
    """A check of `doctor`.

    Attributes:
        name: what was checked.
        result: `ok`; `warning`: it works, and somebody should look; `failed`; `skipped`: it could not be checked, or there is
            nothing to check.
        message: what was found.
        advice: what to do; empty when there is nothing to do.
    """

    name: str
    result: Literal["ok", "warning", "failed", "skipped"]
    message: str
    advice: str


class Checks:
    """Collects the results of checks."""

    def __init__(self) -> None:
        self.found: list[Check] = []

    def ok(self, name: str, message: str) -> None:
        """Record that it is as it should be."""
        self.found.append(Check(name=name, result="ok", message=message, advice=""))

    def warn(self, name: str, message: str, advice: str = "") -> None:
        """Record that it works, and that somebody should look."""
        self.found.append(Check(name=name, result="warning", message=message, advice=advice))

    def fail(self, name: str, message: str, advice: str = "") -> None:
        """Record that it does not work."""
        self.found.append(Check(name=name, result="failed", message=message, advice=advice))

    def skip(self, name: str, message: str) -> None:
        """Record that it could not be checked, or that there is nothing to check."""
        self.found.append(Check(name=name, result="skipped", message=message, advice=""))

    async def guarded(self, name: str, check: Awaitable[None]) -> None:
        """Make a check; an error of it is its result."""
        try:
            await check
        except FlowActionsError as exc:
            self.fail(name, str(exc))
        except Exception as exc:  # noqa: BLE001  the other checks are still made
            self.fail(name, f"the check failed unexpectedly: {summary(exc)}")


async def check_egress(checks: Checks, context: CommandContext, url: str) -> None:
    """Say what would happen to a webhook to a URL, and why. Nothing is connected to."""
    name = "egress"
    try:
        destination = parse_destination(url)
    except EgressRefused as exc:
        checks.fail(name, f"refused at enqueue: {exc}", "correct the URL")
        return
    settings, host = context.settings, destination.host
    if context.host is not None and context.host.transport is not None:
        way = "by the host's own transport"
    elif settings.egress_proxy is not None:
        way = "through the proxy of FLOWACTIONS_EGRESS_PROXY"
    else:
        way = "directly"
    resolver = Resolver(threads=1)
    guard = guard_of(settings, resolver)
    try:
        addresses = [str(ipaddress.ip_address(host))]
    except ValueError:
        if settings.egress_resolve == "proxy":
            checks.ok(name, f"{host} would be sent to {way}, which resolves and judges its addresses")
            return
        try:
            async with asyncio.timeout(RESOLVE_SECONDS):
                addresses = [*dict.fromkeys(await resolver(host, destination.port))]
        except (OSError, TimeoutError, UnicodeError) as exc:
            reason = str(exc) or "no answer"
            checks.fail(
                name,
                f"{host} has no address now ({reason}): it would be enqueued, and each attempt would fail",
                "see that the name exists and that this machine's resolver knows it",
            )
            return
    for address in addresses:
        try:
            guard.check_address(address)
        except EgressRefused as exc:
            allowed = f"if this destination is yours: FLOWACTIONS_EGRESS_ALLOW={address}/{128 if ':' in address else 32}"
            checks.fail(name, f"{host} at {address} would be refused: {exc}", allowed)
            return
    checks.ok(name, f"{host} at {', '.join(addresses)} would be sent to {way}; port {destination.port}")


async def check_alerts(checks: Checks, context: CommandContext) -> None:
    """Say whether alerts may be sent to where the settings say. Nothing is connected to."""
    settings = context.settings
    if settings.alerts_url is None:
        checks.skip("alerts", "FLOWACTIONS_ALERTS_URL is not set: no alert is sent")
        return
    guard = guard_of(settings, Resolver(threads=1))
    try:
        destination, is_missing = await guard.look_up(settings.alerts_url)
    except EgressRefused as exc:
        checks.fail("alerts", f"alerts would be refused: {exc}", "correct FLOWACTIONS_ALERTS_URL")
        return
    if is_missing:
        advice = "see that the name in FLOWACTIONS_ALERTS_URL exists and that this machine's resolver knows it"
        checks.fail("alerts", f"{destination.host} has no address now: no alert arrives", advice)
        return
    checks.ok("alerts", f"alerts are sent to {destination.key}, signed; try it: flowactions test-alert")


async def check_proxy(checks: Checks, settings: Settings, seconds: float = PROXY_SECONDS) -> None:
    """Ask the egress proxy for a tunnel to a name that never exists, to see that it is there and accepts our credentials."""
    advice = "see that FLOWACTIONS_EGRESS_PROXY is right, and that the proxy runs and can be reached"
    transport, _ = outbound(settings, guard_of(settings, Resolver(threads=1)), None, 1)
    progress = Progress()
    try:
        async with asyncio.timeout(seconds):
            await transport.send(Request("GET", parse_destination(NOWHERE), (), None, progress))
    except ProxyFailed as exc:
        if exc.status == PROXY_AUTHENTICATION_REQUIRED:
            advice = "correct the user name and password in FLOWACTIONS_EGRESS_PROXY"
        if exc.status in {None, PROXY_AUTHENTICATION_REQUIRED}:
            detail = printable(exc.detail, message=True)
            checks.fail("proxy", f"{exc} ({detail}): deliveries wait for it", advice)
            return
    except TimeoutError:
        if progress.proxy is not None:
            checks.fail(
                "proxy", f"the egress proxy {progress.proxy} did not answer within {seconds:g} s", advice
            )
            return
    except SendFailed:
        pass  # it opened a tunnel
    finally:
        await transport.aclose()
    checks.ok("proxy", "the proxy of FLOWACTIONS_EGRESS_PROXY answers, and asks for no other credentials")


async def check_keys(checks: Checks, context: CommandContext) -> None:
    """Check that the encryption keys open every stored token. Nothing is resealed."""
    store = ConnectionStore(context.database)
    stored = await store.sealed_tokens("", 1)
    settings = context.settings
    if not settings.encryption_keys and (not stored or settings.environment == "development"):
        checks.skip("keys", "no encryption key is set, and no token needs one")
        return
    try:
        keys = keys_of(settings, context.database)
    except NotConfigured as exc:
        checks.fail("keys", str(exc), "set it to the keys that the tokens were sealed with")
        return
    done = await reseal(store, keys, dry=True)
    said = f"{done.current} tokens under the newest key, {done.changed} under older ones"
    if done.broken:
        some = ", ".join(printable(each) for each in done.broken[:5])
        checks.fail(
            "keys",
            f"{said}; no key opens those of {len(done.broken)} organizations: {some}",
            "add the missing key to FLOWACTIONS_ENCRYPTION_KEYS, or let them reconnect",
        )
    elif done.changed:
        checks.warn("keys", said, "run 'flowactions reseal' before you remove an older key")
    else:
        checks.ok("keys", said)


def _last_error(checks: Checks, stored: StoredConnection, now: float) -> None:
    """Name the last message that an organization could not send, if that was less than a day ago."""
    if stored.last_error is None or stored.last_error_at is None or stored.last_error_at < now * 1000 - DAY_MS:
        return
    origin = "a test message"
    if stored.last_error_node:
        origin = f"flow {printable(stored.last_error_flow)}, node {printable(stored.last_error_node)}"
    error = f"last error {stored.last_error} at {to_iso(stored.last_error_at)}, {origin}"
    checks.warn("chat", f"organization {printable(stored.organization_id)}: {error}", advice(stored.last_error))


async def check_chat(checks: Checks, context: CommandContext) -> None:
    """Ask the chat provider whether it accepts the stored tokens (auth-test). Nothing is recorded."""
    chat = build_chat(context.settings, context.database)
    if isinstance(chat, NotConfigured):
        checks.skip("chat", f"not configured: {chat}")
        return
    keys = keys_of(context.settings, context.database)
    store = ConnectionStore(context.database)
    try:
        if context.settings.chat_bot_token is not None:
            identity = await chat.provider.identify(context.settings.chat_bot_token)
            checks.ok("chat", f"CHAT_BOT_TOKEN is accepted, of workspace {printable(identity.team_name)}")
        tokens = await store.sealed_tokens("", CHAT_TOKENS + 1)
        now = await context.database.time()
        accepted = 0
        for organization_id, _ in tokens[:CHAT_TOKENS]:
            stored = await store.get(organization_id)
            if stored is None:
                continue
            _last_error(checks, stored, now)
            try:
                await chat.provider.identify(usable_token(keys, stored))
                accepted += 1
            except ChatRefused as refusal:
                checks.fail("chat", f"organization {printable(organization_id)}: {refusal.code}", str(refusal))
        more = "; the others were not asked about" if len(tokens) > CHAT_TOKENS else ""
        checks.ok("chat", f"the provider accepts {accepted} of {min(len(tokens), CHAT_TOKENS)} tokens{more}")
    except ChatRefused as refusal:
        checks.fail("chat", f"CHAT_BOT_TOKEN: {refusal.code}", str(refusal))
    finally:
        await chat.aclose()
