"""Checks of ``flowactions doctor`` on egress, keys and chat tokens."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Awaitable
from typing import Final, Literal

import msgspec

from flowactions_hookspecs import FlowActionsError
from flowactions_plugin.chat.failures import REVOKED, TRANSIENT, ChatRefused, advice_for_operators
from flowactions_plugin.chat.service import Chat, build_chat, keys_of
from flowactions_plugin.chat.store import ACTIVE, ASKED_AGAIN, ConnectionStore, StoredConnection, troubled
from flowactions_plugin.chat.tokens import reseal, usable_token
from flowactions_plugin.cli.context import CommandContext
from flowactions_plugin.cli.frame import summary
from flowactions_plugin.clock import to_iso
from flowactions_plugin.egress.attempt import Progress, Request
from flowactions_plugin.egress.destination import parse_destination
from flowactions_plugin.egress.guard import HOW_TO_ALLOW, networks_of
from flowactions_plugin.egress.outbound import guard_of, outbound
from flowactions_plugin.egress.resolver import Resolver
from flowactions_plugin.egress.tunnel import ProxyFailed
from flowactions_plugin.errors import EgressRefused, NotConfigured, SendFailed
from flowactions_plugin.log_text import plural, printable
from flowactions_plugin.settings.model import Settings
from flowactions_plugin.storage.retention import DAY_MS
from flowactions_plugin.storage.sealing import KeyRing

CHAT_TOKENS: Final = 20
"""How many chat tokens are tested at the most, so that the provider does not throttle the app."""

TROUBLED_READ: Final = 1000
"""How many chat connections with a known failure are read."""

UNREADABLE: Final = "token_unreadable"

NAMED: Final = 20
"""How many failures of one kind are named; further ones are counted."""

NOT_A_PROXY: Final = frozenset({400, 401, 405, 501})
"""What a server answers to CONNECT that is no forward proxy; as a redirect (3xx). A proxy that does not find the name answers
otherwise."""

RESOLVE_SECONDS: Final = 10.0
PROXY_SECONDS: Final = 10.0

NOWHERE: Final = "https://flowactions-doctor.invalid/"
"""A name that is never registered (RFC 6761 §6.4), so that a proxy connects to nothing."""


class Check(msgspec.Struct, kw_only=True, rename="camel"):
    """A check of `doctor`.

    Attributes:
        name: what was checked.
        result: `ok`; `warning`: it works, but somebody should look at it; `failed`; `skipped`: it could not be
            checked, or nothing needs a check.
        message: the result in words.
        advice: what to do; empty: nothing.
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


def and_more(
    checks: Checks, name: str, number: int, what: tuple[str, str], see: str, *, exact: bool = True
) -> None:
    """Record the number of further failures of one kind that are not named.

    Args:
        checks: to be added to.
        name: of the check.
        number: how many are not named; nothing is said for none.
        what: of which kind, for one and for several.
        see: the command that lists them.
        exact: whether these are all.
    """
    if number > 0:
        checks.warn(name, plural(number, f"more {what[0]}", f"more {what[1]}", exact=exact), see)


async def check_egress(checks: Checks, context: CommandContext, url: str) -> None:
    """Record what would happen to a webhook to a URL, and why, without a connection."""
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
            advice = "no webhook should be sent there: correct the URL"
            if str(exc).endswith(HOW_TO_ALLOW):
                advice = f"if this destination is yours: FLOWACTIONS_EGRESS_ALLOW={networks_of(address)}"
            checks.fail(name, f"{host} at {address} would be refused: {exc}", advice)
            return
    checks.ok(name, f"{host} at {', '.join(addresses)} would be sent to {way}; port {destination.port}")


async def check_alerts(checks: Checks, context: CommandContext) -> None:
    """Record whether alerts may be sent to the URL of the settings, without a connection."""
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
    checks.ok("alerts", f"alerts are sent to {destination.key}, signed; try it: flowactions send-test <URL>")


async def check_proxy(checks: Checks, settings: Settings, seconds: float = PROXY_SECONDS) -> None:
    """Ask the egress proxy for a tunnel to a name that never exists, to see that it is there and accepts our credentials."""
    advice = "see that FLOWACTIONS_EGRESS_PROXY is right, and that the proxy runs and can be reached"
    transport, _ = outbound(settings, guard_of(settings, Resolver(threads=1)), None)
    progress = Progress()
    answered = "opens tunnels"
    try:
        async with asyncio.timeout(seconds):
            await transport.send(Request("GET", parse_destination(NOWHERE), (), None, progress))
    except ProxyFailed as exc:
        status = exc.status
        wants = status == 407 and not exc.of_tunnel
        if wants:
            advice = "correct the user name and password in FLOWACTIONS_EGRESS_PROXY"
        elif status is not None and _is_no_proxy(status):
            advice = "have FLOWACTIONS_EGRESS_PROXY name a forward proxy: a web server answers so, which opens no tunnels"
        if status is None or wants or _is_no_proxy(status):
            detail = printable(exc.detail, message=True)
            checks.fail("proxy", f"{exc} ({detail}): deliveries wait for it", advice)
            return
        answered = f"answered {status} to CONNECT for a name that does not exist"
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
    checks.ok(
        "proxy",
        f"the proxy of FLOWACTIONS_EGRESS_PROXY answers, and asks for no other credentials: it {answered}",
    )


def _is_no_proxy(status: int) -> bool:
    return status in NOT_A_PROXY or 300 <= status < 400


async def check_keys(checks: Checks, context: CommandContext) -> None:
    """Check that the encryption keys open every stored token. Nothing is resealed."""
    store = ConnectionStore(context.database)
    stored = await store.sealed_tokens("", 1)
    settings = context.settings
    if not settings.encryption_keys and (not stored or settings.environment == "development"):
        needed = "the file flowactions.key is used, as this is development" if stored else "no token needs one"
        checks.skip("keys", f"no encryption key is set, and {needed}")
        return
    try:
        keys = keys_of(settings, context.database)
    except NotConfigured as exc:
        checks.fail("keys", str(exc), "set it to the keys that the tokens were sealed with")
        return
    done = await reseal(store, keys, dry=True)
    said = f"{plural(done.current, 'token')} under the newest key, {done.changed} under older ones"
    if done.broken:
        some = ", ".join(printable(each) for each in done.broken[:5])
        checks.fail(
            "keys",
            f"{said}; no key opens those of {plural(len(done.broken), 'organization')}: {some}",
            "add the missing key to FLOWACTIONS_ENCRYPTION_KEYS, or let them reconnect",
        )
    elif done.changed:
        checks.warn("keys", said, "run 'flowactions reseal' before you remove an older key")
    else:
        checks.ok("keys", said)


async def check_chat(checks: Checks, context: CommandContext, *, asks: bool = True) -> None:
    """Check the settings for chat, and ask the provider whether it accepts stored tokens (auth-test).

    Only one thing is stored: that it accepts a token which it has refused before.

    Args:
        checks: to be added to.
        context: the settings and the database.
        asks: whether the provider is asked.
    """
    store = ConnectionStore(context.database)
    settings = context.settings
    connected = await store.count_active()
    workspaces = plural(connected, "workspace is", "workspaces are")
    chat = build_chat(settings, context.database)
    if isinstance(chat, NotConfigured):
        if connected:
            checks.fail(
                "chat",
                f"{workspaces} connected, and no message is sent: a setting is missing or wrong",
                str(chat),
            )
        else:
            checks.skip("chat", f"not configured: {chat}")
        return
    try:
        if connected and not settings.chat_signing_secrets and settings.chat_bot_token is None:
            checks.fail(
                "chat",
                f"{workspaces} connected, and the provider's events are refused: a revoked token is not noticed",
                "set CHAT_SIGNING_SECRET to the chat app's signing secret",
            )
        if asks:
            await _ask_provider(checks, context, chat, store, connected)
    finally:
        await chat.aclose()


async def _ask_provider(
    checks: Checks, context: CommandContext, chat: Chat, store: ConnectionStore, connected: int
) -> None:
    if not await _bot_token_is_accepted(checks, chat, context.settings.chat_bot_token):
        return
    keys = keys_of(context.settings, context.database)
    accepted: set[str] = set()
    refused: list[tuple[str, ChatRefused]] = []
    for stored in [*await store.some(ASKED_AGAIN, CHAT_TOKENS), *await store.some(ACTIVE, CHAT_TOKENS)]:
        reason = await _refusal(chat, keys, stored)
        if reason is None:
            accepted.add(stored.organization_id)
        else:
            refused.append((stored.organization_id, reason))
    here = not accepted and (len(refused) > 1 or any(each.transient for _, each in refused))
    for organization_id, why in refused:
        # A token that one workspace has revoked is its own matter; keys, and a provider that accepts none, are not.
        tell = checks.fail if here or why.code == UNREADABLE else checks.warn
        tell("chat", f"organization {printable(organization_id)}: {why.code}", advice_for_operators(why.code))
    if not accepted and not refused:
        checks.skip("chat", "no workspace is connected, so no token was tested")
    elif accepted:
        others = connected - CHAT_TOKENS
        more = (
            f"; {plural(others, 'more was', 'more were')} not asked about, so that it does not throttle us"
            if others > 0
            else ""
        )
        checks.ok(
            "chat", f"the provider accepts {len(accepted)} of {len(accepted) + len(refused)} tokens{more}"
        )
    await _troubled(checks, context, store, accepted, {organization_id for organization_id, _ in refused})


async def _bot_token_is_accepted(checks: Checks, chat: Chat, token: str | None) -> bool:
    if token is None:
        return True
    try:
        identity = await chat.provider.identify(token)
    except ChatRefused as refusal:
        checks.fail("chat", f"CHAT_BOT_TOKEN: {refusal.code}", advice_for_operators(refusal.code))
        return False
    checks.ok("chat", f"CHAT_BOT_TOKEN is accepted, of workspace {printable(identity.team_name)}")
    return True


async def _refusal(chat: Chat, keys: KeyRing, stored: StoredConnection) -> ChatRefused | None:
    """Ask about a token; return why it is refused. If the provider accepts one that it has refused before, that is stored."""
    if stored.ask_at is not None:
        return await chat.verify(stored)
    try:
        await chat.provider.identify(usable_token(keys, stored))
    except ChatRefused as refusal:
        return refusal
    return None


async def _troubled(
    checks: Checks, context: CommandContext, store: ConnectionStore, accepted: set[str], told: set[str]
) -> None:
    """Name connections that are revoked, or whose last message could not be sent, less than a day ago."""
    since = int(await context.database.time() * 1000) - DAY_MS
    named = 0
    found = [
        each for each in await store.some(troubled(since), TROUBLED_READ) if each.organization_id not in told
    ]
    for stored in found:
        code = stored.status_reason or "token_revoked" if stored.status != "active" else stored.last_error or ""
        if stored.organization_id in accepted and code in REVOKED | TRANSIENT:
            continue
        named += 1
        if named > NAMED:
            continue
        whose = f"organization {printable(stored.organization_id)}"
        if stored.status != "active":
            checks.warn("chat", f"{whose}: {code}", advice_for_operators(code))
            continue
        origin = "a test message"
        if stored.last_error_node:
            origin = f"flow {printable(stored.last_error_flow)}, node {printable(stored.last_error_node)}"
        error = f"last error {code} at {to_iso(stored.last_error_at or 0)}, {origin}"
        checks.warn("chat", f"{whose}: {error}", advice_for_operators(code))
    see = "see the page 'Chat connections'"
    and_more(
        checks, "chat", named - NAMED, ("connection", "connections"), see, exact=len(found) < TROUBLED_READ
    )
