"""Every setting, typed, read once from the host's mapping."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

from flowactions_hookspecs import Host, SettingsInvalid, provides
from flowactions_plugin.settings import readers
from flowactions_plugin.settings.readers import Allowed, AutoPause
from flowactions_plugin.storage.urls import parse_database_url

PREFIX: Final = "FLOWACTIONS_"
AUTH_SECRET: Final = "AUTH_WEBHOOK_SIGNING_SECRET"  # noqa: S105  a setting's name

DEFAULT_MAX_BODY_BYTES: Final = 1 << 20


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The plugin's settings. What each means is in the reference of the settings.

    A field has beside its type the function that reads its text, unless the type tells how, and the setting's name, unless
    that is ``FLOWACTIONS_`` and the field's. The repr hides all, because some are secrets.

    Attributes:
        destination_limit: ``None``: see `per_destination`.
        delivery_timeout: seconds that an attempt may take, all included.
        retry_schedule: seconds from each failed attempt to the next; empty: the rule of §8.
        auto_pause: ``None``: never.
        egress_ca: the certificates (PEM).
        encryption_keys: 32 bytes each, the newest first.
        auth_secrets: the newest first, each with ``whsec_``.
        public_url: without a slash at the end.
    """

    environment: Literal["production", "development"] = "production"
    database_url: Annotated[str, parse_database_url] = "sqlite+aiosqlite:///flowactions.db"
    database_connections: Annotated[int, readers.number(int, 2, 1000)] = 15
    host_worker: Literal["on", "own", "off"] = "on"
    delivery: Literal["scheduled", "continuous"] = "scheduled"
    concurrency: Annotated[int, readers.number(int, 1, 1000)] = 100
    destination_limit: Annotated[int | None, readers.number(int, 1, 1000)] = None
    tick_seconds: Annotated[float, readers.number(float, 0.05, 3600)] = 60.0
    claim_limit: Annotated[int, readers.number(int, 1, 1000)] = 50
    delivery_timeout: Annotated[int, readers.number(int, 1, 60)] = 10
    retry_schedule: Annotated[tuple[int, ...], readers.retry_schedule] = ()
    auto_pause: Annotated[AutoPause | None, readers.auto_pause] = None
    retention_days: Annotated[int, readers.number(int, 1, 3650)] = 30
    idempotency_hours: Annotated[int, readers.number(int, 1, 8760)] = 24
    show_operators: bool = False
    egress_allow: Annotated[tuple[Allowed, ...], readers.destinations] = ()
    egress_proxy: Annotated[str | None, readers.proxy_url] = None
    egress_proxy_tunnel: Literal["https", "all"] = "https"
    egress_resolve: Literal["local", "proxy"] = "local"
    egress_ca: Annotated[str | None, readers.authorities, "FLOWACTIONS_EGRESS_CA_FILE"] = None
    send_traceparent: bool = False
    max_body_bytes: Annotated[int, readers.number(int, 1 << 10, 16 << 20)] = DEFAULT_MAX_BODY_BYTES
    standard_webhooks: bool = False
    ready_needs_writes: bool = False
    alerts_url: Annotated[str | None, readers.webhook_url] = None
    alerts_secret: Annotated[str | None, readers.signing_secret] = None
    encryption_keys: Annotated[tuple[bytes, ...], readers.encryption_keys] = ()
    connections_path: Annotated[str, readers.url_path] = "/connections"
    login_path: Annotated[str | None, readers.url_path] = None
    dashboard_origins: Annotated[tuple[str, ...], readers.origins] = ()
    public_url: Annotated[str | None, readers.base_url, "BACKEND_PUBLIC_URL"] = None
    auth_secrets: Annotated[tuple[str, ...], readers.signing_secrets, "AUTH_WEBHOOK_SIGNING_SECRET"] = ()
    chat_delivery: Literal["direct", "queued"] = "direct"
    chat_client_id: Annotated[str | None, readers.line, "CHAT_CLIENT_ID"] = None
    chat_client_secret: Annotated[str | None, readers.line, "CHAT_CLIENT_SECRET"] = None
    chat_signing_secrets: Annotated[tuple[str, ...], readers.lines, "CHAT_SIGNING_SECRET"] = ()
    chat_bot_token: Annotated[str | None, readers.token, "CHAT_BOT_TOKEN"] = None
    chat_api_url: Annotated[str, readers.directory_url, "CHAT_API_URL"] = "https://slack.com/api/"
    chat_authorize_url: Annotated[str, readers.url, "CHAT_AUTHORIZE_URL"] = (
        "https://slack.com/oauth/v2/authorize"
    )

    @property
    def per_destination(self) -> int | None:
        """Deliveries in flight to one destination, in each worker; ``None``: no limit, as in scheduled mode if none is set."""
        return self.destination_limit or (10 if self.delivery == "continuous" else None)

    @property
    def slots(self) -> int:
        """Attempts that a worker makes at once."""
        return self.concurrency if self.delivery == "continuous" else self.claim_limit

    def __repr__(self) -> str:
        return "Settings(…)"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return []  # used by printers that print structs field by field


def _readers() -> Iterator[tuple[str, tuple[str, Callable[[str], Any]]]]:
    """Find the name of each setting, its field, and what reads its text."""
    for field, hint in get_type_hints(Settings, include_extras=True).items():
        if get_origin(hint) is Annotated:
            read, *named = hint.__metadata__
        else:
            read, named = readers.on_or_off if hint is bool else readers.one_of(*get_args(hint)), []
        yield (named[0] if named else PREFIX + field.upper()), (field, read)


READERS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = dict(_readers())
"""Setting name → field of `Settings` and parser of its text."""


def read_settings(mapping: Mapping[str, str], host: Host | None = None) -> Settings:
    """Read the settings; an empty text counts as not set.

    Names of other programs are ignored. An unknown name that starts with ``FLOWACTIONS_`` is an error, because it is a
    typing mistake. So is a setting's name in lower case while the setting itself is missing.

    Args:
        mapping: setting → text.
        host: whose they are; a secret for the auth provider's events is wrong in one that cannot handle them (§4.4).

    Raises:
        SettingsInvalid: the message lists all wrong settings, and never a value.
    """
    wrong = [_unknown(name) for name in mapping if _is_mistyped(name, mapping)]
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
    given = {name for name in READERS if str(mapping.get(name, "")).strip()}
    wrong += _contradictions(given, values)
    if host is not None and AUTH_SECRET in given and not provides(host, "auth_event"):
        wrong.append(
            f"{AUTH_SECRET} is set, and {type(host).__name__} has no method auth_event: add it, or remove the secret"
        )
    if wrong:
        raise SettingsInvalid("these settings cannot be used: " + "; ".join(sorted(wrong)))
    return Settings(**values)


def _contradictions(given: Collection[str], values: Mapping[str, Any]) -> list[str]:
    """Return what settings need of each other and do not have."""
    wrong: list[str] = []
    if "FLOWACTIONS_EGRESS_PROXY" not in given:
        if values.get("egress_resolve") == "proxy":
            wrong.append("FLOWACTIONS_EGRESS_RESOLVE must be local unless FLOWACTIONS_EGRESS_PROXY is set")
        if values.get("egress_proxy_tunnel") == "all":
            wrong.append("FLOWACTIONS_EGRESS_PROXY_TUNNEL must be https unless FLOWACTIONS_EGRESS_PROXY is set")
    if values.get("host_worker") == "own" and values.get("delivery") != "continuous":
        wrong.append("FLOWACTIONS_HOST_WORKER must be on or off unless FLOWACTIONS_DELIVERY is continuous")
    if "alerts_url" in values and "FLOWACTIONS_ALERTS_SECRET" not in given:
        wrong.append(
            "FLOWACTIONS_ALERTS_URL must have a FLOWACTIONS_ALERTS_SECRET beside it: 'flowactions keygen --signing' makes one"
        )
    return wrong


def _read(read: Callable[[str], Any], text: str) -> tuple[Any, str | None]:
    """Read one setting; returns its value, or a message about it that never holds the text."""
    try:
        return read(text), None
    except Exception as exc:  # noqa: BLE001  an error of a library quotes its input
        reason = str(exc)
        return None, reason if type(exc) is ValueError and reason.startswith("must ") else "must be well formed"


def _is_mistyped(name: object, mapping: Mapping[str, str]) -> bool:
    """Return whether a name is one of ours with a mistake, or in lower case while the right one is missing."""
    if not isinstance(name, str) or name in READERS:
        return False
    right = name.upper()
    if right in READERS:
        return right not in mapping
    # Those of test suites and of the conformance kit are not read.
    return right.startswith(PREFIX) and not right.startswith((f"{PREFIX}TEST_", f"{PREFIX}CONFORMANCE_"))


def _unknown(name: str) -> str:
    """Say that there is no such setting, and which one may be meant."""
    close = difflib.get_close_matches(name.upper(), READERS, n=1)
    return f"{name} does not exist" + (f" (did you mean {close[0]}?)" if close else "")
