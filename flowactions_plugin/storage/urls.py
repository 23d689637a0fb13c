"""Database URLs: parsed whole when settings are read, and turned into what the drivers take.

No message in here ever holds a part of a URL but the name of an option.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlencode

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

CONNECT_SECONDS: Final = 10
"""How long a connection to PostgreSQL may take to open, unless the URL says otherwise."""

DRIVERS: Final = {
    "sqlite": "sqlite",
    "sqlite+aiosqlite": "sqlite",
    "postgres": "postgresql",
    "postgresql": "postgresql",
    "postgresql+asyncpg": "postgresql",
}
DEFAULT_PORT: Final = 5432

SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
TLS_VERSIONS: Final = ("TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3")

CHOICES: Final[Mapping[str, Sequence[str]]] = {
    "sslmode": SSL_MODES,
    "ssl_min_protocol_version": TLS_VERSIONS,
    "ssl_max_protocol_version": TLS_VERSIONS,
    "sslnegotiation": ("postgres", "direct"),
    "target_session_attrs": ("any", "read-write", "read-only", "primary", "standby", "prefer-standby"),
    # asyncpg neither binds the channel nor encrypts by GSSAPI. What providers write into their URLs is let through.
    "channel_binding": ("disable", "prefer", "require"),
    "gssencmode": ("disable", "prefer"),
    "client_encoding": ("auto", "utf8", "UTF8", "utf-8", "UTF-8"),
}
"""Options of libpq with a fixed set of values."""

NOT_PASSED_ON: Final = ("channel_binding", "gssencmode", "client_encoding")

FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
TEXTS: Final = ("application_name", "options", "sslpassword", "passfile", "krbsrvname", "gsslib", *FILES)
NUMBERS: Final = ("connect_timeout", "prepared_statement_cache_size", "statement_cache_size")
PLACES: Final = ("host", "port", "user", "password", "dbname", "database")
"""Parts of a PostgreSQL URL that may stand in its query instead."""

ALIASES: Final = {"ssl": "sslmode", "fallback_application_name": "application_name"}
"""What others call an option, and what stands in for one that is not there."""

SQLITE_OPTIONS: Final = (
    "uri",
    "timeout",
    "isolation_level",
    "detect_types",
    "check_same_thread",
    "cached_statements",
)
SQLITE_URI_OPTIONS: Final = ("mode", "cache", "vfs", "immutable", "nolock", "psow")

SYSTEM_AUTHORITIES: Final = "system"
"""Of ``sslrootcert``, as in libpq: the operating system's certificate authorities."""

ENCODE: Final = (
    "must have special characters in its user name, password and options percent-encoded (@ as %40, / as %2F, "
    ": as %3A, ? as %3F, # as %23)"
)


class _Place(NamedTuple):
    """A host name, address or directory of a Unix socket, and a port."""

    host: str
    port: int | None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


def parse_database_url(text: str) -> str:
    """Parse a database URL, as operators and providers write it, into one for SQLAlchemy.

    Raises:
        ValueError: it cannot be used; the message goes on after the setting's name and holds no value.
    """
    scheme, separator, rest = text.partition("://")
    backend = DRIVERS.get(scheme)
    if not separator or backend is None:
        raise ValueError("must start with sqlite:// or postgresql://")
    if any(ord(character) < 32 or ord(character) == 127 for character in unquote(rest)):
        raise ValueError("must not contain control characters")
    return _sqlite(rest) if backend == "sqlite" else _postgresql(rest)


def is_in_memory(url: URL) -> bool:
    """Tell whether an SQLite URL names a database that has no file."""
    name = url.database or ""
    return name in {"", ":memory:"} or ":memory:" in name or "memory" in (url.query.get("mode"), _mode_in(name))


def sqlite_path(url: URL) -> Path | None:
    """Give the path of an SQLite database's file, ``None`` when it has none."""
    if is_in_memory(url):
        return None
    name = (url.database or "").partition("?")[0]
    return Path(name.removeprefix("file:") if name.startswith("file:") else name).absolute()


def same_database(one: URL, other: URL) -> bool:
    """Tell whether two URLs name one database, with whatever driver and user."""
    if one.get_backend_name() != other.get_backend_name():
        return False
    if one.get_backend_name() == "sqlite":
        paths = sqlite_path(one), sqlite_path(other)
        return None not in paths and len({path.resolve() for path in paths if path is not None}) == 1
    return (_addresses(one), one.database or one.username) == (
        _addresses(other),
        other.database or other.username,
    )


def asyncpg_arguments(url: URL) -> dict[str, Any]:
    """Give the arguments with which asyncpg connects to where a parsed URL leads.

    asyncpg reads libpq's options from a DSN only, so they go there, and what libpq knows and asyncpg takes as an
    argument goes beside it.

    Raises:
        OSError: a file that an option names cannot be read; the message names the option.
    """
    options = {name: value for name, value in url.query.items() if isinstance(value, str)}
    given: dict[str, Any] = {"timeout": float(options.pop("connect_timeout", 0)) or CONNECT_SECONDS}
    places = _places(url)
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


def secrets_of(url: URL) -> tuple[str, ...]:
    """Give the parts of a URL that no message may hold: user name, password and what stands in the query."""
    values = [url.username, url.password]
    for name, value in url.query.items():
        if name not in CHOICES and name not in NUMBERS and name not in SQLITE_OPTIONS:
            values += [value] if isinstance(value, str) else list(value)
    forms = {
        form
        for value in values
        if value
        for form in (value, quote(value), quote(value, safe=""), quote_plus(value), repr(value)[1:-1])
    }
    return tuple(sorted(forms, key=len, reverse=True))


def _sqlite(rest: str) -> str:
    if not rest.startswith("/"):
        if not rest or rest.startswith("?"):
            raise ValueError(_NO_FILE)
        raise ValueError("must have three slashes before a relative path and four before an absolute one")
    if rest.startswith("/~/"):
        rest = "/" + str(Path("~").expanduser()) + rest.removeprefix("/~")
    text = f"sqlite+aiosqlite://{rest}"
    try:
        url = make_url(text)
        wrong = _wrong_sqlite_option(url)
        if wrong is None:
            url.get_dialect()().create_connect_args(url)
    except (SQLAlchemyError, ValueError):
        wrong = "must be an SQLite URL such as sqlite:///path/to/file.db"
    if wrong is not None:
        raise ValueError(wrong)
    return text


_NO_FILE: Final = "must name a file, such as sqlite:///flowactions.db: in memory, each connection would have a database of its own"


def _wrong_sqlite_option(url: URL) -> str | None:
    if is_in_memory(url):
        return _NO_FILE
    for name in url.query:
        if name in SQLITE_URI_OPTIONS:
            if url.query.get("uri") not in {"true", "1", "yes", "on"}:
                return f"must have uri=true for the option {name}"
        elif name not in SQLITE_OPTIONS:
            return _unknown(name)
    return None


def _mode_in(name: str) -> str | None:
    return dict(parse_qsl(name.partition("?")[2])).get("mode")


def _postgresql(rest: str) -> str:
    authority, path, query = re.match(r"([^/?]*)(/[^?]*)?(?:\?(.*))?$", rest, re.DOTALL).groups(default="")  # type: ignore[union-attr]  # matches any text
    userinfo, _, hosts = authority.rpartition("@")
    # A reserved character in a password ends a part early. What follows would be taken for a host, a database or an
    # option, and be told to whoever reads that it is not there.
    if "#" in rest or any("@" in part for part in (userinfo, path, query)):
        raise ValueError(ENCODE)
    username, _, password = userinfo.partition(":")
    places = [_place(part) for part in hosts.split(",")] if hosts else []
    options = _options(query)
    in_query = {name: options.pop(name) for name in PLACES if name in options}
    if "host" in in_query:
        ports = in_query.pop("port", str(places[0].port or "") if places else "").split(",")
        places = list(_places_in_query(in_query["host"], ports))
    elif "port" in in_query:
        places = [_Place(places[0].host if places else "localhost", _port(in_query["port"]))]
    database = in_query.get("dbname", in_query.get("database", unquote(path[1:])))
    if not database:
        raise ValueError("must name a database after the host, such as postgresql://host/database")
    first = places[0] if places else _Place("", None)
    plain = len(places) < 2 and not first.host.startswith("/")
    if not plain:
        options["host"] = first.host if len(places) == 1 else tuple(map(str, places))
    return URL.create(
        "postgresql+asyncpg",
        username=in_query.get("user", unquote(username)) or None,
        password=in_query.get("password", unquote(password)) or None,
        host=(first.host or None) if plain else None,
        port=first.port if len(places) < 2 else None,
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
        if name not in {*CHOICES, *TEXTS, *NUMBERS, *PLACES}:
            raise ValueError(_unknown(name))
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


def _unknown(name: str) -> str:
    # Anything else may be a piece of something that was not encoded.
    shown = f"the option {name}" if re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name) else "one of its options"
    return f"must not have {shown}, which is not supported"


def _place(text: str) -> _Place:
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.%a-z]+)\]|([^\s:\[\]]*))(?::([0-9]*))?", text)
    if found is None:
        raise ValueError(
            f"must have a host and a port such as host:{DEFAULT_PORT}, and {ENCODE.removeprefix('must have ')}"
        )
    return _Place(found[1] or unquote(found[2] or ""), _port(found[3] or ""))


def _places_in_query(host: str, ports: Sequence[str]) -> Iterator[_Place]:
    hosts = host.split(",")
    if len(ports) not in {1, len(hosts)}:
        raise ValueError("must have as many ports as hosts")
    for index, each in enumerate(hosts):
        place = _Place(each, None) if each.startswith("/") or each.count(":") > 1 else _place(each)
        port = ports[index if len(ports) > 1 else 0]
        yield place if place.port is not None else _Place(place.host, _port(port))


def _port(text: str) -> int | None:
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or not 0 < int(text) < 65536:
        raise ValueError("must have a port from 1 to 65535")
    return int(text)


def _places(url: URL) -> list[_Place]:
    hosts = url.query.get("host")
    if hosts is None:
        return [_Place(url.host, url.port)] if url.host else []
    if isinstance(hosts, str):
        ports = url.query.get("port", str(url.port or ""))
        return list(_places_in_query(hosts, ports.split(",") if isinstance(ports, str) else ports))
    return [_place(host) for host in hosts]


def _addresses(url: URL) -> set[tuple[str, int]]:
    places = _places(url) or [_Place("localhost", url.port)]
    loopback = {"127.0.0.1", "::1"}
    return {
        ("localhost" if place.host in loopback else place.host.lower(), place.port or DEFAULT_PORT)
        for place in places
    }


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
        # Its name is part of the query, and so stays out of the message.
        raise OSError(f"the file that the URL names as {name} cannot be read: {reason}")


def _system_context(options: dict[str, str]) -> ssl.SSLContext:
    """Make a context of the system's authorities, taking the options that are in it away."""
    context = ssl.create_default_context()
    for name in ("sslrootcert", "sslmode"):
        options.pop(name, None)
    certificate, key = options.pop("sslcert", None), options.pop("sslkey", None)
    if certificate is not None:
        context.load_cert_chain(certificate, key, options.pop("sslpassword", ""))
    return context
