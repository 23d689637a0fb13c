"""Every setting, typed, read once from the host's mapping."""

from __future__ import annotations

import base64
import difflib
import ipaddress
import re
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

import msgspec

from flowactions_hookspecs import SettingsInvalid
from flowactions_plugin.origins import parse_origin
from flowactions_plugin.settings_urls import parse_url
from flowactions_plugin.storage.urls import parse_database_url

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Number = TypeVar("Number", int, float)

PREFIX: Final = "FLOWACTIONS_"
TEST_PREFIX: Final = "FLOWACTIONS_TEST_"
"""Names with it belong to test suites and are not read."""

DEFAULT_MAX_BODY_BYTES: Final = 1 << 20

AUTH_SECRET_BYTES: Final = 16
"""A shorter secret can be guessed, and with it anyone can sign events of the auth provider."""

CA_FILE_BYTES: Final = 4 << 20

_CONTROL = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The plugin's settings. The repr hides them, because some are secrets.

    Attributes:
        environment: ``FLOWACTIONS_ENVIRONMENT``; in ``development``, loopback and private destinations are
            allowed and an encryption key is made when there is none.
        database_url: ``FLOWACTIONS_DATABASE_URL``; used when the host shares no engine.
        host_worker: ``FLOWACTIONS_HOST_WORKER``; ``on`` or ``off``: whether the host's own processes deliver, or
            only those of ``flowactions worker``.
        delivery: ``FLOWACTIONS_DELIVERY``; ``scheduled``: a tick at a time; ``continuous``: as fast as slots become
            free.
        concurrency: ``FLOWACTIONS_CONCURRENCY``; slots of a worker that delivers continuously.
        destination_limit: ``FLOWACTIONS_DESTINATION_LIMIT``; deliveries in flight to one destination, in each
            worker; when it is not set, 10 in continuous mode and no limit in scheduled mode.
        tick_seconds: ``FLOWACTIONS_TICK_SECONDS``; seconds between two ticks of the delivery worker (§8).
        claim_limit: ``FLOWACTIONS_CLAIM_LIMIT``; rows claimed per tick (§8).
        retention_days: ``FLOWACTIONS_RETENTION_DAYS``; days for which delivered rows and records of abandoned
            runs are kept.
        egress_allow: ``FLOWACTIONS_EGRESS_ALLOW``; networks (CIDR, by commas) allowed although a rule
            forbids them.
        egress_proxy: ``FLOWACTIONS_EGRESS_PROXY``; a forward proxy through which every webhook leaves, with user
            name and password in it if it asks for them.
        egress_resolve: ``FLOWACTIONS_EGRESS_RESOLVE``; ``local``: names are resolved and judged here; ``proxy``: only
            the proxy resolves, and only the form of a URL and literal addresses are judged here.
        egress_ca: ``FLOWACTIONS_EGRESS_CA_FILE``; the content of that file: certificates (PEM) of authorities that
            webhook deliveries trust beside the system's.
        max_body_bytes: ``FLOWACTIONS_MAX_BODY_BYTES``; of a webhook's body, as it is stored and as it is sent.
        encryption_keys: ``FLOWACTIONS_ENCRYPTION_KEYS``; base64 of 32 bytes each, by commas, newest first.
        connections_path: ``FLOWACTIONS_CONNECTIONS_PATH``; the dashboard page on which an OAuth install ends.
        dashboard_origins: ``FLOWACTIONS_DASHBOARD_ORIGINS``; further origins, by commas, whose pages may call the
            dashboard routes that change something.
        public_url: ``BACKEND_PUBLIC_URL``; where browsers reach the routes, without a slash at the end (§5.5).
        chat_client_id: ``CHAT_CLIENT_ID``.
        chat_client_secret: ``CHAT_CLIENT_SECRET``.
        chat_signing_secret: ``CHAT_SIGNING_SECRET``; verifies the chat provider's events (§5.4).
        chat_bot_token: ``CHAT_BOT_TOKEN``; a static token that skips OAuth (§5.5).
        auth_secrets: ``AUTH_WEBHOOK_SIGNING_SECRET``; verifies the auth provider's events, by commas, newest first
            (§5.4).
        idempotency_hours: ``FLOWACTIONS_IDEMPOTENCY_HOURS``; hours for which a logic-webhook call's key is
            remembered (§8).
        chat_api_url: ``CHAT_API_URL``.
        chat_authorize_url: ``CHAT_AUTHORIZE_URL``.
    """

    environment: Literal["production", "development"] = "production"
    database_url: str = "sqlite+aiosqlite:///flowactions.db"
    host_worker: bool = True
    delivery: Literal["scheduled", "continuous"] = "scheduled"
    concurrency: int = 100
    destination_limit: int | None = None
    tick_seconds: float = 60.0
    claim_limit: int = 50
    retention_days: int = 30
    egress_allow: tuple[Network, ...] = ()
    egress_proxy: str | None = None
    egress_resolve: Literal["local", "proxy"] = "local"
    egress_ca: str | None = None
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    encryption_keys: tuple[bytes, ...] = ()
    connections_path: str = "/connections"
    dashboard_origins: tuple[str, ...] = ()
    public_url: str | None = None
    chat_client_id: str | None = None
    chat_client_secret: str | None = None
    chat_signing_secret: str | None = None
    chat_bot_token: str | None = None
    auth_secrets: tuple[str, ...] = ()
    idempotency_hours: int = 24
    chat_api_url: str = "https://slack.com/api/"
    chat_authorize_url: str = "https://slack.com/oauth/v2/authorize"

    def __repr__(self) -> str:
        return "Settings(…)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []  # used by printers that print structs field by field


def _one_of(first: str, second: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in {first, second}:
            raise ValueError(f"must be {first} or {second}")
        return text

    return read


def _switch(text: str) -> bool:
    return _one_of("on", "off")(text) == "on"


def _number(kind: Callable[[str], Number], least: float, most: float) -> Callable[[str], Number]:
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


def _parts(text: str) -> list[str]:
    return [part for part in map(str.strip, text.split(",")) if part]


def _networks(text: str) -> tuple[Network, ...]:
    try:
        return tuple(ipaddress.ip_network(part) for part in _parts(text))
    except ValueError:
        raise ValueError(
            "must be networks such as 10.20.0.0/16 or fd12::/16, separated by commas, whose host bits are zero"
        ) from None


def _keys(text: str) -> tuple[bytes, ...]:
    message = "must be base64 of 32 random bytes, or several of them separated by commas"
    try:
        keys = tuple(base64.b64decode(part, validate=True) for part in map(str.strip, text.split(",")))
    except ValueError:
        raise ValueError(message) from None
    if any(len(key) != 32 for key in keys):
        raise ValueError(message)
    return keys


def _url(text: str) -> str:
    return parse_url(text).text


def _base_url(text: str) -> str:
    return _url(text).rstrip("/")


def _api_url(text: str) -> str:
    return _base_url(text) + "/"


def _proxy_url(text: str) -> str:
    url = parse_url(text, with_userinfo=True)
    if url.path not in {"", "/"}:
        raise ValueError("must be a proxy's URL without a path, such as http://proxy:3128")
    return url._replace(path="").text


def _authorities(text: str) -> str:
    message = "must name a readable file of certificates in PEM"
    try:
        with Path(text).open("rb") as file:
            content = file.read(CA_FILE_BYTES + 1)
        certificates = content.decode("ascii", "ignore")
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=certificates)
    except (OSError, ValueError):  # an SSLError is an OSError
        raise ValueError(message) from None
    if len(content) > CA_FILE_BYTES:
        raise ValueError(f"{message} of {CA_FILE_BYTES} bytes at the most")
    return certificates


def _path(text: str) -> str:
    if not text.startswith("/") or text.startswith("//") or re.search(r"[\\\s\x00-\x1f\x7f]", text):
        raise ValueError("must be a path that starts with one slash, without spaces and backslashes")
    if "?" in text:
        raise ValueError("must be a path without a query, for the outcome of an install becomes its query")
    return text


def _origins(text: str) -> tuple[str, ...]:
    origins = [parse_origin(part.strip()) for part in text.split(",") if part.strip()]
    found = tuple(origin for origin in origins if origin is not None)
    if len(found) != len(origins):
        raise ValueError("must be origins such as https://app.example.com, by commas, without a path")
    return found


def _signing_secrets(text: str) -> tuple[str, ...]:
    secrets: list[bytes] = []
    for part in _parts(text):
        encoded = part.removeprefix("whsec_").rstrip("=")
        try:
            secrets.append(base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True))
        except ValueError:
            secrets.append(b"")
    if not secrets or not all(secrets):
        raise ValueError("must be secrets such as whsec_…, which is base64, separated by commas")
    if any(len(secret) < AUTH_SECRET_BYTES for secret in secrets):
        raise ValueError(
            f"must be secrets of at least {AUTH_SECRET_BYTES} bytes each: a shorter one can be guessed"
        )
    return tuple(f"whsec_{base64.b64encode(secret).decode()}" for secret in secrets)


def _text(text: str) -> str:
    if _CONTROL.search(text):
        raise ValueError("must be a line of text without control characters")
    return text


def _token(text: str) -> str:
    if re.fullmatch(r"[!-~]+", text) is None:
        raise ValueError("must be a token: visible ASCII characters, without spaces")
    return text


READERS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "FLOWACTIONS_ENVIRONMENT": ("environment", _one_of("production", "development")),
    "FLOWACTIONS_DATABASE_URL": ("database_url", parse_database_url),
    "FLOWACTIONS_HOST_WORKER": ("host_worker", _switch),
    "FLOWACTIONS_DELIVERY": ("delivery", _one_of("scheduled", "continuous")),
    "FLOWACTIONS_CONCURRENCY": ("concurrency", _number(int, 1, 1000)),
    "FLOWACTIONS_DESTINATION_LIMIT": ("destination_limit", _number(int, 1, 1000)),
    "FLOWACTIONS_TICK_SECONDS": ("tick_seconds", _number(float, 0.05, 3600)),
    "FLOWACTIONS_CLAIM_LIMIT": ("claim_limit", _number(int, 1, 1000)),
    "FLOWACTIONS_RETENTION_DAYS": ("retention_days", _number(int, 1, 3650)),
    "FLOWACTIONS_IDEMPOTENCY_HOURS": ("idempotency_hours", _number(int, 1, 8760)),
    "FLOWACTIONS_EGRESS_ALLOW": ("egress_allow", _networks),
    "FLOWACTIONS_EGRESS_PROXY": ("egress_proxy", _proxy_url),
    "FLOWACTIONS_EGRESS_RESOLVE": ("egress_resolve", _one_of("local", "proxy")),
    "FLOWACTIONS_EGRESS_CA_FILE": ("egress_ca", _authorities),
    "FLOWACTIONS_MAX_BODY_BYTES": ("max_body_bytes", _number(int, 1 << 10, 16 << 20)),
    "FLOWACTIONS_ENCRYPTION_KEYS": ("encryption_keys", _keys),
    "FLOWACTIONS_CONNECTIONS_PATH": ("connections_path", _path),
    "FLOWACTIONS_DASHBOARD_ORIGINS": ("dashboard_origins", _origins),
    "BACKEND_PUBLIC_URL": ("public_url", _base_url),
    "AUTH_WEBHOOK_SIGNING_SECRET": ("auth_secrets", _signing_secrets),
    "CHAT_CLIENT_ID": ("chat_client_id", _text),
    "CHAT_CLIENT_SECRET": ("chat_client_secret", _text),
    "CHAT_SIGNING_SECRET": ("chat_signing_secret", _text),
    "CHAT_BOT_TOKEN": ("chat_bot_token", _token),
    "CHAT_API_URL": ("chat_api_url", _api_url),
    "CHAT_AUTHORIZE_URL": ("chat_authorize_url", _url),
}
"""Setting name → field of `Settings` and parser of its text."""


def read_settings(mapping: Mapping[str, str]) -> Settings:
    """Read the settings; an empty text counts as not set.

    Names of other programs are ignored. An unknown name that starts with ``FLOWACTIONS_`` is an error, because it is a
    typing mistake.

    Raises:
        SettingsInvalid: the message lists all wrong settings, and never a value.
    """
    wrong = [_unknown(name) for name in mapping if _is_ours(name) and name not in READERS]
    values: dict[str, Any] = {}
    for name, (field, read) in READERS.items():
        text: object = mapping.get(name, "")
        if not isinstance(text, str):
            wrong.append(f"{name} must be text")
        elif text.strip():
            value, reason = _read(read, text.strip())
            if reason is None:
                values[field] = value
            else:
                wrong.append(f"{name} {reason}")
    if values.get("egress_resolve") == "proxy" and not str(mapping.get("FLOWACTIONS_EGRESS_PROXY", "")).strip():
        wrong.append("FLOWACTIONS_EGRESS_RESOLVE must be local unless FLOWACTIONS_EGRESS_PROXY is set")
    if wrong:
        raise SettingsInvalid("these settings cannot be used: " + "; ".join(sorted(wrong)))
    return Settings(**values)


def _read(read: Callable[[str], Any], text: str) -> tuple[Any, str | None]:
    """Read one setting; returns its value, or a message about it that never holds the text."""
    try:
        return read(text), None
    except Exception as exc:  # noqa: BLE001  an error of a library quotes its input
        reason = str(exc)
        return None, reason if type(exc) is ValueError and reason.startswith("must ") else "must be well formed"


def _is_ours(name: object) -> bool:
    return isinstance(name, str) and name.startswith(PREFIX) and not name.startswith(TEST_PREFIX)


def _unknown(name: str) -> str:
    close = difflib.get_close_matches(name, READERS, n=1)
    return f"{name} does not exist" + (f" (did you mean {close[0]}?)" if close else "")
