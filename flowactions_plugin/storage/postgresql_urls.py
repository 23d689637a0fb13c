"""URLs of PostgreSQL databases: parsed as operators and providers write them, and translated into arguments of asyncpg."""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote, urlencode

from sqlalchemy.engine import URL

DEFAULT_PORT: Final = 5432

SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
TLS_VERSIONS: Final = ("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3")

CHOICES: Final[Mapping[str, Sequence[str]]] = {
    "sslmode": SSL_MODES,
    "ssl_min_protocol_version": TLS_VERSIONS,
    "ssl_max_protocol_version": TLS_VERSIONS,
    "sslnegotiation": ("postgres", "direct"),
    "target_session_attrs": ("any", "read-write", "read-only", "primary", "standby", "prefer-standby"),
    # asyncpg supports neither channel binding nor GSSAPI encryption. Values that providers write are accepted.
    "channel_binding": ("disable", "prefer", "require"),
    "gssencmode": ("disable", "prefer"),
    "client_encoding": ("auto", "utf8", "UTF8", "utf-8", "UTF-8"),
}
"""Options of libpq with a fixed set of values."""

FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
TEXTS: Final = ("application_name", "options", "sslpassword", "passfile", "krbsrvname", "gsslib", *FILES)
NUMBERS: Final = ("connect_timeout", "prepared_statement_cache_size", "statement_cache_size")
IN_QUERY: Final = ("host", "port", "user", "password", "dbname", "database")
"""Parts of a PostgreSQL URL that may be in its query instead."""

ALIASES: Final = {"ssl": "sslmode", "fallback_application_name": "application_name"}
"""Other names of options, and substitutes for missing ones."""

SYSTEM_AUTHORITIES: Final = "system"
"""Value of ``sslrootcert``, as in libpq: the operating system's certificate authorities."""

ENCODE: Final = (
    "must have special characters in its user name, password and options percent-encoded (@ as %40, / as %2F, "
    ": as %3A, ? as %3F, # as %23)"
)

CONNECT_SECONDS: Final = 10
"""How long a connection to PostgreSQL may take to open, unless the URL says otherwise."""

NOT_PASSED_ON: Final = ("channel_binding", "gssencmode", "client_encoding")


class Server(NamedTuple):
    """A host name, an address or the directory of a Unix socket; and a port."""

    host: str
    port: int | None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


def parse_postgresql(rest: str) -> str:
    """Parse what follows ``postgresql://``; returns a URL for SQLAlchemy.

    Raises:
        ValueError: it cannot be used; the message continues after the setting's name and holds no value.
    """
    authority, path, query = re.match(r"([^/?]*)(/[^?]*)?(?:\?(.*))?$", rest, re.DOTALL).groups(default="")  # type: ignore[union-attr]  # matches any text
    userinfo, _, hosts = authority.rpartition("@")
    # A reserved character in a password ends a part early. The rest would be parsed as a host, a database or an
    # option, and appear in a message.
    if "#" in rest or any("@" in part for part in (userinfo, path, query)):
        raise ValueError(ENCODE)
    username, _, password = userinfo.partition(":")
    servers = [_server(part) for part in hosts.split(",")] if hosts else []
    options = _options(query)
    in_query = {name: options.pop(name) for name in IN_QUERY if name in options}
    if "host" in in_query:
        ports = in_query.pop("port", str(servers[0].port or "") if servers else "").split(",")
        servers = list(_servers_in_query(in_query["host"], ports))
    elif "port" in in_query:
        servers = [Server(servers[0].host if servers else "localhost", _port(in_query["port"]))]
    database = in_query.get("dbname", in_query.get("database", unquote(path[1:])))
    if not database:
        raise ValueError("must name a database after the host, such as postgresql://host/database")
    first = servers[0] if servers else Server("", None)
    plain = len(servers) < 2 and not first.host.startswith("/")
    if not plain:
        options["host"] = first.host if len(servers) == 1 else tuple(map(str, servers))
    return URL.create(
        "postgresql+asyncpg",
        username=in_query.get("user", unquote(username)) or None,
        password=in_query.get("password", unquote(password)) or None,
        host=(first.host or None) if plain else None,
        port=first.port if len(servers) < 2 else None,
        database=database,
        query=options,
    ).render_as_string(hide_password=False)


def _options(query: str) -> dict[str, Any]:
    options: dict[str, Any] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ValueError("must have its options as name=value, separated by &") from None
    for given, value in pairs:
        name = ALIASES.get(given, given)
        if name not in {*CHOICES, *TEXTS, *NUMBERS, *IN_QUERY}:
            raise ValueError(unsupported(name))
        if given == "ssl":
            options[name] = {"true": "require", "false": "disable"}.get(value, value)
        elif given == "host" and "host" in options:
            options[name] += f",{value}"
        elif given == name or name not in options:
            options[name] = value
    options = {name: value for name, value in options.items() if value}
    _check_values(options)
    return options


def _check_values(options: dict[str, Any]) -> None:
    for name, choices in CHOICES.items():
        if name in options and options[name] not in choices:
            raise ValueError(f"must have one of {', '.join(choices)} as its option {name}")
    for name in NUMBERS:
        if name in options and not re.fullmatch(r"[0-9]{1,5}", options[name]):
            raise ValueError(f"must have a whole number as its option {name}")
    system = options.get("sslrootcert") == SYSTEM_AUTHORITIES
    if system and options.setdefault("sslmode", "verify-full") != "verify-full":
        raise ValueError("must have sslmode=verify-full with sslrootcert=system")


def _server(text: str) -> Server:
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%a-z]+)\]|([^\s:\[\]]*))(?::([0-9]*))?", text)
    if found is None:
        raise ValueError(
            f"must have a host and a port such as host:{DEFAULT_PORT}, and {ENCODE.removeprefix('must have ')}"
        )
    return Server(found[1] or unquote(found[2] or ""), _port(found[3] or ""))


def _servers_in_query(host: str, ports: Sequence[str]) -> Iterator[Server]:
    hosts = host.split(",")
    if len(ports) not in {1, len(hosts)}:
        raise ValueError("must have as many ports as hosts")
    for index, each in enumerate(hosts):
        server = Server(each, None) if each.startswith("/") or each.count(":") > 1 else _server(each)
        port = ports[index if len(ports) > 1 else 0]
        yield server if server.port is not None else Server(server.host, _port(port))


def _port(text: str) -> int | None:
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise ValueError("must have a port from 1 to 65535")
    return int(text)


def servers_of(url: URL) -> list[Server]:
    """Return the servers of a parsed URL; empty when it names none."""
    hosts = url.query.get("host")
    if hosts is None:
        return [Server(url.host, url.port)] if url.host else []
    if isinstance(hosts, str):
        ports = url.query.get("port", str(url.port or ""))
        return list(_servers_in_query(hosts, ports.split(",") if isinstance(ports, str) else ports))
    return [_server(host) for host in hosts]


def addresses_of(url: URL) -> set[tuple[str, int]]:
    """Return hosts and ports, in a form in which equal ones compare equal."""
    servers = servers_of(url) or [Server("localhost", url.port)]
    loopback = {"127.0.0.1", "::1"}
    return {
        ("localhost" if server.host in loopback else server.host.lower(), server.port or DEFAULT_PORT)
        for server in servers
    }


def unsupported(name: str) -> str:
    """Return the message about an option that is not supported."""
    # Another name may be a part of a password that was not percent-encoded.
    shown = f"the option {name}" if re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name) else "one of its options"
    return f"must not have {shown}, which is not supported"


def asyncpg_arguments(url: URL) -> dict[str, Any]:
    """Return the arguments with which asyncpg connects to the servers of a parsed URL.

    asyncpg reads libpq's options from a DSN only, so they are passed in one. Options that asyncpg takes as arguments
    are passed as arguments.

    Raises:
        OSError: a file that an option names cannot be read; the message names the option.
    """
    options = {name: value for name, value in url.query.items() if isinstance(value, str)}
    given: dict[str, Any] = {"timeout": float(options.pop("connect_timeout", 0)) or CONNECT_SECONDS}
    places = servers_of(url)
    if places:
        given["host"] = [place.host for place in places]
        given["port"] = [place.port or DEFAULT_PORT for place in places]
    named = {"user": url.username, "password": url.password, "database": url.database}
    given.update({name: value for name, value in named.items() if value})
    for name in ("prepared_statement_cache_size", "statement_cache_size"):
        if name in options:
            given[name] = int(options.pop(name))
    if options.pop("sslnegotiation", None) == "direct":
        given["direct_tls"] = True
    for name in ("host", *NOT_PASSED_ON):
        options.pop(name, None)
    _check_files(options)
    if options.get("sslrootcert") == SYSTEM_AUTHORITIES:
        given["ssl"] = _system_context(options)
    if options:
        given["dsn"] = f"postgresql:///?{urlencode(options)}"
    return given


def _check_files(options: Mapping[str, str]) -> None:
    for name in FILES:
        if name not in options or (name == "sslrootcert" and options[name] == SYSTEM_AUTHORITIES):
            continue
        try:
            Path(options[name]).read_bytes()
        except OSError as exc:
            reason = exc.strerror
        else:
            continue
        # The file's name is part of the query, which no message holds.
        raise OSError(f"the file that the URL names as {name} cannot be read: {reason}")


def _system_context(options: dict[str, str]) -> ssl.SSLContext:
    """Make a context with the system's authorities, and remove the options that it contains."""
    context = ssl.create_default_context()
    for name in ("sslrootcert", "sslmode"):
        options.pop(name, None)
    certificate, key = options.pop("sslcert", None), options.pop("sslkey", None)
    if certificate is not None:
        context.load_cert_chain(certificate, key, options.pop("sslpassword", ""))
    return context
