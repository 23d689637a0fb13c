"""Readers of settings: each parses a text, or raises ValueError with a message that holds no value."""

from __future__ import annotations

import base64
import contextlib
import ipaddress
import re
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias, TypeVar

from flowactions_plugin.origins import is_host_name, is_number, parse_origin, to_a_labels
from flowactions_plugin.settings.urls import parse_url

Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
Allowed: TypeAlias = Network | str
"""A network, or a host name in A-labels: ``hooks.internal.example``, or ``*.internal.example`` for all below it."""
Number = TypeVar("Number", int, float)

SECRET_BYTES: Final = 16
"""A shorter secret can be guessed, and with it anyone can sign events of the auth provider, or alerts."""

RETRY_SCHEDULES: Final[Mapping[str, tuple[int, ...]]] = {
    "default": (),
    "long": (5, 5 * 60, 30 * 60, 2 * 3600, 5 * 3600, 10 * 3600, 10 * 3600),
}
"""The schedules that have a name: seconds from one attempt to the next. Empty: the rule of §8."""

MOST_DELAYS: Final = 9
"""Of a schedule: an attempt more than these is the cap of §8."""

_DELAY = re.compile(r"([0-9]{1,5})([smh])")
_AUTO_PAUSE = re.compile(r"\s*([0-9]{1,5})\s*,(.*)", re.DOTALL)

_CONTROL = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


def one_of(*words: str) -> Callable[[str], str]:
    """Return a reader of one of some words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"must be {', '.join(words[:-1])} or {words[-1]}")
        return text

    return read


def on_or_off(text: str) -> bool:
    """Read ``on`` or ``off``."""
    return one_of("on", "off")(text) == "on"


def number(kind: Callable[[str], Number], least: float, most: float) -> Callable[[str], Number]:
    """Return a reader of a number between two limits."""
    what = "a whole number" if kind is int else "a number"
    message = f"must be {what} from {least:.10g} to {most:.10g}"

    def read(text: str) -> Number:
        try:
            value = kind(text)
        except ValueError:
            raise ValueError(message) from None
        if not least <= value <= most:
            raise ValueError(message)
        return value

    return read


def retry_schedule(text: str) -> tuple[int, ...]:
    """Read a schedule of retries: its name, or its delays; returns these in seconds, and nothing for the rule of §8."""
    if text in RETRY_SCHEDULES:
        return RETRY_SCHEDULES[text]
    delays = tuple(map(_delay_seconds, text.split(",")))
    wrong = [str(position) for position, delay in enumerate(delays, 1) if delay is None]
    if wrong or len(delays) > MOST_DELAYS:
        found = f"delay {', '.join(wrong)} cannot be read" if wrong else f"{len(delays)} are given"
        raise ValueError(
            f"must be default, long, or 1 to {MOST_DELAYS} delays from 1s to 24h with their units, separated by commas, "
            f"such as 10s,5m,30m,2h: {found}"
        )
    return tuple(delay for delay in delays if delay is not None)


class AutoPause(NamedTuple):
    """The rule for automatic pauses of a destination.

    Attributes:
        failures: so many in a row.
        seconds: from the first of them to the last, at least.
    """

    failures: int
    seconds: int


def auto_pause(text: str) -> AutoPause | None:
    """Read after how many failures in a row, over how long, a destination is paused; ``off``: never."""
    if text == "off":
        return None
    found = _AUTO_PAUSE.fullmatch(text)
    failures, seconds = (0, None) if found is None else (int(found[1]), _delay_seconds(found[2]))
    if not failures or seconds is None:
        raise ValueError(
            "must be off, or two values such as 20,30m: how many failures in a row (1 to 99999), and over how long at least "
            "(1s to 24h, with its unit)"
        )
    return AutoPause(failures, seconds)


def _delay_seconds(text: str) -> int | None:
    """Read a delay with its unit; ``None``: it cannot be read, or is too long."""
    found = _DELAY.fullmatch(text.strip())
    seconds = 0 if found is None else int(found[1]) * {"s": 1, "m": 60, "h": 3600}[found[2]]
    return seconds if 1 <= seconds <= 24 * 3600 else None


def _parts(text: str) -> list[str]:
    """Split a text at commas; empty parts are left out."""
    return [part for part in map(str.strip, text.split(",")) if part]


def destinations(text: str) -> tuple[Allowed, ...]:
    """Read networks in CIDR notation and host names, separated by commas."""
    return tuple(map(_destination, _parts(text)))


def _destination(text: str) -> Allowed:
    """Read a network or a host name, which has ``*.`` in front if it stands for all names below it."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_network(text)
    any_label = "*." if text.startswith("*.") else ""
    with contextlib.suppress(ValueError):
        name = to_a_labels(text.removeprefix(any_label)).lower().removesuffix(".")
        if is_host_name(name) and not is_number(name):
            return any_label + name
    raise ValueError(
        "must be networks such as 10.20.0.0/16 or fd12::/16, whose host bits are zero, or host names such as "
        "hooks.internal.example or *.internal.example, separated by commas"
    )


def encryption_keys(text: str) -> tuple[bytes, ...]:
    """Read keys of 32 bytes in base64, separated by commas."""
    keys = tuple(key_bytes(part.strip()) for part in text.split(","))
    if any(len(key) != 32 for key in keys):
        raise ValueError("must be base64 of 32 random bytes, or several of them separated by commas")
    return keys


def url(text: str) -> str:
    """Read an http or https URL."""
    return parse_url(text).text


def webhook_url(text: str) -> str:
    """Read an http or https URL that may have a query."""
    path, _, query = text.partition("?")
    if re.search(r"[^!-~]|[#\\]", query):
        raise ValueError("must be a URL whose query holds visible ASCII characters only, without a fragment")
    parse_url(path)
    return text


def base_url(text: str) -> str:
    """Read a URL; returns it without slashes at the end."""
    return url(text).rstrip("/")


def directory_url(text: str) -> str:
    """Read a URL; returns it with one slash at the end."""
    return base_url(text) + "/"


def proxy_url(text: str) -> str:
    """Read the URL of a forward proxy."""
    url = parse_url(text, with_userinfo=True)
    if url.path not in {"", "/"}:
        raise ValueError("must be a proxy's URL without a path, such as http://proxy:3128")
    return url._replace(path="").text


def authorities(text: str) -> str:
    """Read a file of certificates (PEM); returns its content."""
    message, most = "must name a readable file of certificates in PEM", 4 << 20
    try:
        with Path(text).open("rb") as file:
            content = file.read(most + 1)
        certificates = content.decode("ascii", "ignore")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=certificates)
    except (OSError, ValueError):  # an SSLError is an OSError
        raise ValueError(message) from None
    if len(content) > most:
        raise ValueError(f"{message} of {most} bytes at the most")
    return certificates


def url_path(text: str) -> str:
    """Read a path that starts with one slash."""
    if not text.startswith("/") or text.startswith("//") or re.search(r"[\\\s\x00-\x1f\x7f]", text):
        raise ValueError("must be a path that starts with one slash, without spaces and backslashes")
    if "?" in text:
        raise ValueError("must be a path without a query, because the plugin adds one")
    return text


def origins(text: str) -> tuple[str, ...]:
    """Read web origins, separated by commas."""
    origins = [parse_origin(part.strip()) for part in text.split(",") if part.strip()]
    found = tuple(origin for origin in origins if origin is not None)
    if len(found) != len(origins):
        raise ValueError("must be origins such as https://app.example.com, by commas, without a path")
    return found


def signing_secrets(text: str) -> tuple[str, ...]:
    """Read secrets in base64, with or without ``whsec_``, separated by commas."""
    secrets = [key_bytes(part.removeprefix("whsec_")) for part in _parts(text)]
    if not secrets or not all(secrets):
        raise ValueError("must be secrets such as whsec_…, which is base64, separated by commas")
    if any(len(secret) < SECRET_BYTES for secret in secrets):
        raise ValueError(f"must be secrets of at least {SECRET_BYTES} bytes each: a shorter one can be guessed")
    return tuple(f"whsec_{base64.b64encode(secret).decode()}" for secret in secrets)


def signing_secret(text: str) -> str:
    """Read the secret of a webhook, as ``flowactions keygen --signing`` makes it; returns it as it is given."""
    if not text.startswith("whsec_") or len(key_bytes(text.removeprefix("whsec_"))) < SECRET_BYTES:
        raise ValueError(
            f"must be one secret: whsec_ and base64 of at least {SECRET_BYTES} bytes, as 'flowactions keygen --signing' makes it"
        )
    return text


def key_bytes(encoded: str) -> bytes:
    """Return what base64 stands for, padded or not; nothing for what is not base64."""
    encoded = encoded.rstrip("=")
    try:
        return base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except ValueError:
        return b""


def line(text: str) -> str:
    """Read a line of text."""
    if _CONTROL.search(text):
        raise ValueError("must be a line of text without control characters")
    return text


def lines(text: str) -> tuple[str, ...]:
    """Read lines of text, separated by commas."""
    return tuple(_parts(line(text)))


def token(text: str) -> str:
    """Read visible ASCII characters without spaces."""
    if re.fullmatch(r"[!-~]+", text) is None:
        raise ValueError("must be a token: visible ASCII characters, without spaces")
    return text
