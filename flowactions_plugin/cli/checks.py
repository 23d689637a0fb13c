"""Checks of ``flowactions doctor`` on egress, keys and chat tokens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Container
from typing import Final, Literal, NamedTuple, TypeAlias

import msgspec

from flowactions_hookspecs import FlowActionsError
from flowactions_plugin.chat.failures import (
    REVOKED,
    TRANSIENT,
    UNREADABLE_ANSWER,
    ChatRefused,
    advice_for_operators,
)
from flowactions_plugin.chat.service import Chat, build_chat, keys_of
from flowactions_plugin.chat.store import ACTIVE, ASKED_AGAIN, ConnectionStore, troubled
from flowactions_plugin.chat.tokens import reseal, usable_token
from flowactions_plugin.cli.context import CommandContext
from flowactions_plugin.cli.output import summary
from flowactions_plugin.clock import to_iso
from flowactions_plugin.egress.attempt import Progress, Request
from flowactions_plugin.egress.destination import parse_destination
from flowactions_plugin.egress.guard import HOW_TO_ALLOW, is_address, networks_of
from flowactions_plugin.egress.outbound import guard_of, outbound
from flowactions_plugin.egress.resolver import Resolver
from flowactions_plugin.egress.tunnel import ProxyFailed
from flowactions_plugin.errors import EgressRefused, NotConfigured, SendFailed
from flowactions_plugin.log_text import plural, printable
from flowactions_plugin.settings.model import Settings
from flowactions_plugin.storage.retention import DAY_MS

Result: TypeAlias = Literal["ok", "warning", "failed", "skipped"]

CHAT_TOKENS: Final = 20
"""How many chat tokens are tested at the most, so that the provider does not throttle the app."""

TROUBLED_READ: Final = 3 * CHAT_TOKENS
"""How many chat connections with a known failure are read; two thirds of them may be told already, or be over."""

UNREADABLE: Final = "token_unreadable"

NOT_A_PROXY: Final = frozenset({400, 401, 405, 501, *range(300, 400)})
"""What a server answers to CONNECT that is no forward proxy. A proxy that does not find the name answers otherwise."""

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
    result: Result
    message: str
    advice: str


class Checks:
    """Collects the results of checks."""

    def __init__(self) -> None:
        self.found: list[Check] = []

    def add(self, name: str, result: Result, message: str, advice: str = "") -> None:
        """Record a result."""
        self.found.append(Check(name=name, result=result, message=message, advice=advice))

    async def guarded(self, name: str, check: Awaitable[Said | None]) -> None:
        """Make a check, and record what it returns, if it has recorded nothing itself; an error of it is its result."""
        try:
            said = await check
        except Exception as exc:  # noqa: BLE001  the other checks are still made
            is_ours = isinstance(exc, FlowActionsError)
            said = Said("failed", str(exc) if is_ours else f"the check failed unexpectedly: {summary(exc)}")
        if said is not None:
            self.add(name, *said)


class Said(NamedTuple):
    """What a check returns: its result, the result in words, and what to do."""

    result: Result
    message: str
    advice: str = ""


async def check_egress(context: CommandContext, url: str) -> Said:
    """Return what would happen to a webhook to a URL, and why, without a connection."""
    settings, resolver = context.settings, Resolver(threads=1)
    guard = guard_of(settings, resolver)
    way = "directly" if settings.egress_proxy is None else "through the proxy of FLOWACTIONS_EGRESS_PROXY"
    if context.host is not None and context.host.transport is not None:
        way = "by the host's own transport"
    try:
        destination = parse_destination(url)
    except EgressRefused as exc:
        return Said("failed", f"refused at enqueue: {exc}", "correct the URL")
    host, addresses = destination.host, [destination.host]
    if not is_address(host):
        if settings.egress_resolve == "proxy":
            return Said("ok", f"{host} would be sent {way}, which resolves and judges its addresses")
        try:
            async with asyncio.timeout(RESOLVE_SECONDS):
                addresses = [*dict.fromkeys(await resolver(host, destination.port))]
        except (OSError, TimeoutError, UnicodeError) as exc:
            words = f"{host} has no address now ({str(exc) or 'no answer'}): it would be enqueued, and each attempt would fail"
            return Said("failed", words, "see that the name exists and that this machine's resolver knows it")
    for address in addresses:
        try:
            guard.check_address(address, host)
        except EgressRefused as exc:
            advice = "no webhook should be sent there: correct the URL"
            if str(exc).endswith(HOW_TO_ALLOW):
                allow = networks_of(address) if is_address(host) else host.removesuffix(".")
                advice = f"if this destination is yours: FLOWACTIONS_EGRESS_ALLOW={allow}"
            return Said("failed", f"{host} at {address} would be refused: {exc}", advice)
    return Said("ok", f"{host} at {', '.join(addresses)} would be sent {way}; port {destination.port}")


async def check_proxy(settings: Settings, seconds: float = PROXY_SECONDS) -> Said:
    """Ask the egress proxy for a tunnel to a name that never exists, to see that it is there and accepts our credentials."""
    advice = "see that FLOWACTIONS_EGRESS_PROXY is right, and that the proxy runs and can be reached"
    transport, _ = outbound(settings, guard_of(settings, Resolver(threads=1)), None)
    progress, answered = Progress(), "opens tunnels"
    try:
        async with asyncio.timeout(seconds):
            await transport.send(Request("GET", parse_destination(NOWHERE), (), None, progress))
    except ProxyFailed as exc:
        status = exc.status
        wants = status == 407 and not exc.of_tunnel
        if wants:
            advice = "correct the user name and password in FLOWACTIONS_EGRESS_PROXY"
        elif status in NOT_A_PROXY:
            advice = "have FLOWACTIONS_EGRESS_PROXY name a forward proxy: a web server answers so, which opens no tunnels"
        if status is None or wants or status in NOT_A_PROXY:
            detail = printable(exc.detail, message=True)
            return Said("failed", f"{exc} ({detail}): deliveries wait for it", advice)
        answered = f"answered {status} to CONNECT for a name that does not exist"
    except TimeoutError:
        if progress.proxy is not None:
            words = f"the egress proxy {progress.proxy} did not answer within {seconds:g} s"
            return Said("failed", words, advice)
    except SendFailed:
        pass  # it opened a tunnel
    finally:
        await transport.aclose()
    words = f"the proxy of FLOWACTIONS_EGRESS_PROXY answers, and asks for no other credentials: it {answered}"
    return Said("ok", words)


async def check_keys(context: CommandContext) -> Said:
    """Check that the encryption keys open every stored token. Nothing is resealed."""
    store, settings = ConnectionStore(context.database), context.settings
    stored = await store.sealed_tokens("", 1)
    if not settings.encryption_keys and (not stored or settings.environment == "development"):
        needed = "the file flowactions.key is used, as this is development" if stored else "no token needs one"
        return Said("skipped", f"no encryption key is set, and {needed}")
    try:
        keys = keys_of(settings, context.database)
    except NotConfigured as exc:
        return Said("failed", str(exc), "set it to the keys that the tokens were sealed with")
    done = await reseal(store, keys, dry=True)
    said = f"{plural(done.current, 'token')} under the newest key, {done.changed} under older ones"
    if done.broken:
        some = ", ".join(printable(each) for each in done.broken[:5])
        said += f"; no key opens those of {plural(len(done.broken), 'organization')}: {some}"
        advice = "add the missing key to FLOWACTIONS_ENCRYPTION_KEYS, or let them reconnect"
        return Said("failed", said, advice)
    if done.changed:
        return Said("warning", said, "run 'flowactions reseal' before you remove an older key")
    return Said("ok", said)


async def check_chat(checks: Checks, context: CommandContext, *, asks: bool = True) -> None:
    """Check the settings for chat, and ask the provider whether it accepts stored tokens (auth-test), unless ``asks`` is false.

    Only one thing is stored: that it accepts a token which it has refused before.
    """
    store, settings = ConnectionStore(context.database), context.settings
    connected = await store.count_active()
    workspaces = plural(connected, "workspace is", "workspaces are")
    chat = build_chat(settings, context.database)
    if isinstance(chat, NotConfigured):
        if connected:
            words = f"{workspaces} connected, and no message is sent: a setting is missing or wrong"
            checks.add("chat", "failed", words, str(chat))
        else:
            checks.add("chat", "skipped", f"not configured: {chat}")
        return
    try:
        if connected and not settings.chat_signing_secrets and settings.chat_bot_token is None:
            words = (
                f"{workspaces} connected, and the provider's events are refused: a revoked token is not noticed"
            )
            advice = "set CHAT_SIGNING_SECRET to the chat app's signing secret"
            checks.add("chat", "failed", words, advice)
        if asks and settings.chat_bot_token is not None:
            try:
                identity = await chat.provider.identify(settings.chat_bot_token)
            except ChatRefused as refusal:
                words = f"CHAT_BOT_TOKEN: {refusal.code}"
                checks.add("chat", "failed", words, advice_for_operators(refusal.code))
                return
            words = f"CHAT_BOT_TOKEN is accepted, of workspace {printable(identity.team_name)}"
            checks.add("chat", "ok", words)
        if asks:
            await _ask_provider(checks, context, chat, store, connected)
    finally:
        await chat.aclose()


async def _ask_provider(
    checks: Checks, context: CommandContext, chat: Chat, store: ConnectionStore, connected: int
) -> None:
    keys = keys_of(context.settings, context.database)
    accepted: set[str] = set()
    refused: dict[str, ChatRefused] = {}
    for stored in [*await store.some(ASKED_AGAIN, CHAT_TOKENS), *await store.some(ACTIVE, CHAT_TOKENS)]:
        try:
            if stored.ask_at is None:
                await chat.provider.identify(usable_token(keys, stored))
            elif reason := await chat.connections.verify(stored):
                raise reason
            accepted.add(stored.organization_id)
        except ChatRefused as refusal:
            refused[stored.organization_id] = refusal
    of_none = any(each.transient or each.code == UNREADABLE_ANSWER for each in refused.values())
    here = not accepted and (len(refused) > 1 or of_none)
    for organization_id, why in refused.items():
        # A token that one workspace has revoked is its own matter; keys, and a provider that accepts none, are not.
        result: Result = "failed" if here or why.code == UNREADABLE else "warning"
        words = f"organization {printable(organization_id)}: {why.code}"
        checks.add("chat", result, words, advice_for_operators(why.code))
    if accepted:
        more = ""
        if connected > CHAT_TOKENS:
            others = plural(connected - CHAT_TOKENS, "more was", "more were")
            more = f"; {others} not asked about, so that it does not throttle us"
        words = f"the provider accepts {len(accepted)} of {len(accepted) + len(refused)} tokens{more}"
        checks.add("chat", "ok", words)
    elif not refused:
        checks.add("chat", "skipped", "no workspace is connected, so no token was tested")
    await _troubled(checks, context, store, accepted, refused)


async def _troubled(
    checks: Checks, context: CommandContext, store: ConnectionStore, accepted: set[str], told: Container[str]
) -> None:
    """Name connections that are revoked, or whose last message could not be sent, less than a day ago."""
    since = int(await context.database.time() * 1000) - DAY_MS
    for each in await store.some(troubled(since), TROUBLED_READ):  # a finding has the number of all
        code, words = each.status_reason or "token_revoked", ""
        if each.status == "active":
            code, origin = each.last_error or "", "a test message"
            if each.last_error_node:
                origin = f"flow {printable(each.last_error_flow)}, node {printable(each.last_error_node)}"
            words = f"last error {code} at {to_iso(each.last_error_at or 0)}, {origin}"
        is_over = each.organization_id in accepted and code in REVOKED | TRANSIENT
        if each.organization_id not in told and not is_over:
            whose = printable(each.organization_id)
            checks.add("chat", "warning", f"organization {whose}: {words or code}", advice_for_operators(code))
