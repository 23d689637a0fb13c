"""What settings allow that is hardly meant so, and what a default means: pure, for the log at load and for ``doctor``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from flowactions_plugin.log_text import plural
from flowactions_plugin.settings.model import Settings

LONG_TICK: Final = 5.0
"""Seconds. Queued chat messages of a channel, of which a tick posts one, should not wait for longer ones."""


class Advice(NamedTuple):
    """What is so, and what to do about it."""

    words: str
    advice: str


UNREGISTERED: Final = frozenset({"internal", "local", "localhost", "test", "home", "corp", "lan"})
"""Last labels of names that nobody can register."""


def pace_of(settings: Settings) -> Advice | None:
    """Return how much a process sends at the most in scheduled mode (§8); ``None``: it delivers continuously."""
    if settings.delivery == "continuous":
        return None
    a_minute = settings.claim_limit * 60 / settings.tick_seconds
    words = f"a process sends at most {plural(max(1, int(a_minute)), 'webhook')} a minute, because delivery is scheduled"
    return Advice(words, "set FLOWACTIONS_DELIVERY=continuous to send each webhook at once")


def warnings_of(settings: Settings) -> Iterator[Advice]:
    """Return what works and is hardly meant so."""
    everything = next((each for each in settings.egress_allow if getattr(each, "prefixlen", None) == 0), None)
    if everything is not None:
        yield Advice(
            f"FLOWACTIONS_EGRESS_ALLOW has {everything}: webhooks may go to every private and local address",
            "list only the networks of receivers that you know",
        )
    for each in map(str, settings.egress_allow):
        front, _, last = each.rpartition(".")
        if front == "*" and last not in UNREGISTERED:
            yield Advice(
                f"FLOWACTIONS_EGRESS_ALLOW has {each}: anybody can register such a name, and have webhooks sent to private and local addresses",
                "list only names in domains of your own",
            )
    if (
        settings.chat_delivery == "queued"
        and settings.delivery == "scheduled"
        and settings.tick_seconds > LONG_TICK
    ):
        yield Advice(
            f"a channel gets at most {60 / settings.tick_seconds:.2g} chat messages a minute, because delivery is scheduled",
            "set FLOWACTIONS_DELIVERY=continuous to post one a second",
        )
    if settings.environment == "production" and (settings.public_url or "").startswith("http:"):
        yield Advice(
            "BACKEND_PUBLIC_URL begins with http://: sessions and sign-ins cross the network unencrypted",
            "use a URL that begins with https://",
        )
    of_chat = {
        "CHAT_CLIENT_ID": settings.chat_client_id,
        "CHAT_CLIENT_SECRET": settings.chat_client_secret,
        "CHAT_SIGNING_SECRET": settings.chat_signing_secrets,
    }
    missing = [name for name, value in of_chat.items() if not value]
    if settings.chat_bot_token is None and len(missing) < len(of_chat):
        missing += [] if settings.public_url else ["BACKEND_PUBLIC_URL"]
        if missing:
            are = "is" if len(missing) == 1 else "are"
            yield Advice(
                f"the chat app is set up in part: {' and '.join(missing)} {are} not set",
                "set all of them, or none",
            )
