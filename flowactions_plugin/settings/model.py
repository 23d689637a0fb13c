"""Every setting, typed, read once from the host's mapping."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec

from flowactions_hookspecs import Host, SettingsInvalid, provides
from flowactions_plugin.settings.readers import (
    AutoPause,
    Network,
    authorities,
    auto_pause,
    base_url,
    encryption_keys,
    line,
    lines,
    networks,
    number,
    on_or_off,
    one_of,
    origins,
    proxy_url,
    retry_schedule,
    signing_secret,
    signing_secrets,
    token,
    url,
    url_path,
    webhook_url,
)
from flowactions_plugin.storage.urls import parse_database_url

PREFIX: Final = "FLOWACTIONS_"
TEST_PREFIXES: Final = ("FLOWACTIONS_TEST_", "FLOWACTIONS_CONFORMANCE_")
"""Names with these belong to test suites and to the conformance kit, and are not read."""

AUTH_SECRET: Final = "AUTH_WEBHOOK_SIGNING_SECRET"  # noqa: S105  a setting's name

DEFAULT_MAX_BODY_BYTES: Final = 1 << 20


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The plugin's settings, under the names of `READERS`. The repr hides them, because some are secrets.

    Attributes:
        environment: in ``development``, private destinations are allowed, and an encryption key is made when there is none.
        database_url: used when the host shares no engine.
        database_connections: that a process opens to that PostgreSQL at the most.
        host_worker: ``on``: the host's own processes deliver; ``off``: only those of ``flowactions worker``; ``own``: the
            host's send what they enqueue, if they can at once, and claim nothing else.
        delivery: ``scheduled``: a tick at a time; ``continuous``: as fast as slots become free.
        concurrency: slots of a worker that delivers continuously.
        destination_limit: deliveries in flight to one destination, in each worker; ``None``: see `per_destination`.
        tick_seconds: from one tick of the worker to the next (§8).
        claim_limit: rows claimed in a tick (§8).
        retry_schedule: seconds from each failed attempt to the next; empty: the rule of §8.
        auto_pause: when a destination is paused until a probe arrives; ``None``: never.
        retention_days: for which delivered rows and records of abandoned runs are kept.
        egress_allow: networks to which requests are allowed although a rule forbids them.
        egress_proxy: a forward proxy through which every webhook leaves, with its user name and password.
        egress_proxy_tunnel: ``https``: the proxy makes a tunnel (CONNECT) for https, and forwards http; ``all``: for both.
        egress_resolve: ``local``: names are resolved and judged here; ``proxy``: only the proxy resolves, and only the form
            of a URL and literal addresses are judged here.
        egress_ca: certificates (PEM) of authorities that webhook deliveries trust beside the system's.
        send_traceparent: whether deliveries carry the W3C ``traceparent`` of what enqueued them.
        max_body_bytes: of a webhook's body, as it is stored and as it is sent.
        standard_webhooks: whether deliveries also carry the headers of Standard Webhooks (§5.3.8).
        encryption_keys: 32 bytes each, the newest first.
        connections_path: the dashboard page on which an OAuth install ends.
        login_path: where the operator pages send who is not signed in.
        dashboard_origins: further origins whose pages may call the dashboard routes that change something.
        public_url: where browsers reach the routes, without a slash at the end (§5.5).
        chat_client_id: the chat app's.
        chat_client_secret: the chat app's.
        chat_signing_secrets: verify the chat provider's events (§5.4).
        chat_bot_token: a static token that skips OAuth (§5.5).
        auth_secrets: verify the auth provider's events, the newest first (§5.4).
        idempotency_hours: for which a key is remembered (§8).
        show_operators: whether people of a dashboard are shown the names of operators, or the word ``operator``.
        ready_needs_writes: whether a process is ready only while the database takes writes.
        alerts_url: where alerts are sent to.
        alerts_secret: signs alerts.
        chat_api_url: the chat provider's API.
        chat_authorize_url: the page on which an install begins.
    """

    environment: Literal["production", "development"] = "production"
    database_url: str = "sqlite+aiosqlite:///flowactions.db"
    database_connections: int = 15
    host_worker: str = "on"
    delivery: Literal["scheduled", "continuous"] = "scheduled"
    concurrency: int = 100
    destination_limit: int | None = None
    tick_seconds: float = 60.0
    claim_limit: int = 50
    retry_schedule: tuple[int, ...] = ()
    auto_pause: AutoPause | None = None
    retention_days: int = 30
    egress_allow: tuple[Network, ...] = ()
    egress_proxy: str | None = None
    egress_proxy_tunnel: Literal["https", "all"] = "https"
    egress_resolve: Literal["local", "proxy"] = "local"
    egress_ca: str | None = None
    send_traceparent: bool = False
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    standard_webhooks: bool = False
    encryption_keys: tuple[bytes, ...] = ()
    connections_path: str = "/connections"
    login_path: str | None = None
    dashboard_origins: tuple[str, ...] = ()
    public_url: str | None = None
    chat_client_id: str | None = None
    chat_client_secret: str | None = None
    chat_signing_secrets: tuple[str, ...] = ()
    chat_bot_token: str | None = None
    auth_secrets: tuple[str, ...] = ()
    idempotency_hours: int = 24
    show_operators: bool = False
    ready_needs_writes: bool = False
    alerts_url: str | None = None
    alerts_secret: str | None = None
    chat_api_url: str = "https://slack.com/api/"
    chat_authorize_url: str = "https://slack.com/oauth/v2/authorize"

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


READERS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "FLOWACTIONS_ENVIRONMENT": ("environment", one_of("production", "development")),
    "FLOWACTIONS_DATABASE_URL": ("database_url", parse_database_url),
    "FLOWACTIONS_DATABASE_CONNECTIONS": ("database_connections", number(int, 2, 1000)),
    "FLOWACTIONS_HOST_WORKER": ("host_worker", one_of("on", "own", "off")),
    "FLOWACTIONS_DELIVERY": ("delivery", one_of("scheduled", "continuous")),
    "FLOWACTIONS_CONCURRENCY": ("concurrency", number(int, 1, 1000)),
    "FLOWACTIONS_DESTINATION_LIMIT": ("destination_limit", number(int, 1, 1000)),
    "FLOWACTIONS_TICK_SECONDS": ("tick_seconds", number(float, 0.05, 3600)),
    "FLOWACTIONS_CLAIM_LIMIT": ("claim_limit", number(int, 1, 1000)),
    "FLOWACTIONS_RETRY_SCHEDULE": ("retry_schedule", retry_schedule),
    "FLOWACTIONS_AUTO_PAUSE": ("auto_pause", auto_pause),
    "FLOWACTIONS_RETENTION_DAYS": ("retention_days", number(int, 1, 3650)),
    "FLOWACTIONS_IDEMPOTENCY_HOURS": ("idempotency_hours", number(int, 1, 8760)),
    "FLOWACTIONS_SHOW_OPERATORS": ("show_operators", on_or_off),
    "FLOWACTIONS_EGRESS_ALLOW": ("egress_allow", networks),
    "FLOWACTIONS_EGRESS_PROXY": ("egress_proxy", proxy_url),
    "FLOWACTIONS_EGRESS_PROXY_TUNNEL": ("egress_proxy_tunnel", one_of("https", "all")),
    "FLOWACTIONS_EGRESS_RESOLVE": ("egress_resolve", one_of("local", "proxy")),
    "FLOWACTIONS_EGRESS_CA_FILE": ("egress_ca", authorities),
    "FLOWACTIONS_SEND_TRACEPARENT": ("send_traceparent", on_or_off),
    "FLOWACTIONS_MAX_BODY_BYTES": ("max_body_bytes", number(int, 1 << 10, 16 << 20)),
    "FLOWACTIONS_STANDARD_WEBHOOKS": ("standard_webhooks", on_or_off),
    "FLOWACTIONS_READY_NEEDS_WRITES": ("ready_needs_writes", on_or_off),
    "FLOWACTIONS_ALERTS_URL": ("alerts_url", webhook_url),
    "FLOWACTIONS_ALERTS_SECRET": ("alerts_secret", signing_secret),
    "FLOWACTIONS_ENCRYPTION_KEYS": ("encryption_keys", encryption_keys),
    "FLOWACTIONS_CONNECTIONS_PATH": ("connections_path", url_path),
    "FLOWACTIONS_LOGIN_PATH": ("login_path", url_path),
    "FLOWACTIONS_DASHBOARD_ORIGINS": ("dashboard_origins", origins),
    "BACKEND_PUBLIC_URL": ("public_url", base_url),
    "AUTH_WEBHOOK_SIGNING_SECRET": ("auth_secrets", signing_secrets),
    "CHAT_CLIENT_ID": ("chat_client_id", line),
    "CHAT_CLIENT_SECRET": ("chat_client_secret", line),
    "CHAT_SIGNING_SECRET": ("chat_signing_secrets", lines),
    "CHAT_BOT_TOKEN": ("chat_bot_token", token),
    "CHAT_API_URL": ("chat_api_url", lambda text: base_url(text) + "/"),
    "CHAT_AUTHORIZE_URL": ("chat_authorize_url", url),
}
"""Setting name → field of `Settings` and parser of its text."""


def read_settings(mapping: Mapping[str, str]) -> Settings:
    """Read the settings; an empty text counts as not set.

    Names of other programs are ignored. An unknown name that starts with ``FLOWACTIONS_`` is an error, because it is a
    typing mistake. So is a setting's name in lower case while the setting itself is missing.

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
    wrong += _contradictions(mapping, values)
    if wrong:
        raise SettingsInvalid("these settings cannot be used: " + "; ".join(sorted(wrong)))
    return Settings(**values)


def _contradictions(mapping: Mapping[str, str], values: Mapping[str, Any]) -> list[str]:
    """Return what settings need of each other and do not have."""
    wrong: list[str] = []
    if not str(mapping.get("FLOWACTIONS_EGRESS_PROXY", "")).strip():
        if values.get("egress_resolve") == "proxy":
            wrong.append("FLOWACTIONS_EGRESS_RESOLVE must be local unless FLOWACTIONS_EGRESS_PROXY is set")
        if values.get("egress_proxy_tunnel") == "all":
            wrong.append("FLOWACTIONS_EGRESS_PROXY_TUNNEL must be https unless FLOWACTIONS_EGRESS_PROXY is set")
    if values.get("host_worker") == "own" and values.get("delivery") != "continuous":
        wrong.append("FLOWACTIONS_HOST_WORKER must be on or off unless FLOWACTIONS_DELIVERY is continuous")
    if "alerts_url" in values and not str(mapping.get("FLOWACTIONS_ALERTS_SECRET", "")).strip():
        wrong.append(
            "FLOWACTIONS_ALERTS_URL must have a FLOWACTIONS_ALERTS_SECRET beside it: 'flowactions keygen --signing' makes one"
        )
    return wrong


def settings_of(host: Host) -> Settings:
    """Read the settings of a host.

    Raises:
        SettingsInvalid: its message lists everything that is wrong, and never a value. A secret for the auth
            provider's events is wrong in a host that cannot handle them (§4.4).
    """
    wrong: list[str] = []
    settings = None
    try:
        settings = read_settings(host.settings)
    except SettingsInvalid as exc:
        wrong.append(str(exc))
    if str(host.settings.get(AUTH_SECRET, "")).strip() and not provides(host, "auth_event"):
        lead = "" if wrong else "these settings cannot be used: "
        name = type(host).__name__
        wrong.append(
            f"{lead}{AUTH_SECRET} is set, and {name} has no method auth_event: add it, or remove the secret"
        )
    # Raised here, and not where the first one was caught: what it came from may hold a value.
    if settings is None or wrong:
        raise SettingsInvalid("; ".join(wrong))
    return settings


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
    return right.startswith(PREFIX) and not right.startswith(TEST_PREFIXES)


def _unknown(name: str) -> str:
    """Say that there is no such setting, and which one may be meant."""
    close = difflib.get_close_matches(name.upper(), READERS, n=1)
    return f"{name} does not exist" + (f" (did you mean {close[0]}?)" if close else "")
