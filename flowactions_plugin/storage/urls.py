"""Database URLs: checked when settings are read, and passed on to the drivers.

No message about them holds a part of a URL other than the name of an option.
"""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, quote, quote_plus, unquote

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

SQLITE_URI_OPTIONS: Final = ("mode", "cache", "vfs", "immutable", "nolock", "psow")
SQLITE_OPTIONS: Final = (
    *("uri", "timeout", "isolation_level", "detect_types", "check_same_thread", "cached_statements"),
    *SQLITE_URI_OPTIONS,
)

FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl")
NUMBERS: Final = ("connect_timeout", "prepared_statement_cache_size", "statement_cache_size")
NOT_PASSED_ON: Final = ("channel_binding", "gssencmode", "client_encoding")
"""Options that providers write and asyncpg does not know."""

SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")

POSTGRESQL_OPTIONS: Final = (
    *("host", "port", "user", "password", "dbname", "database", "application_name", "options", "passfile"),
    *("target_session_attrs", "krbsrvname", "gsslib", "sslmode", "ssl", "sslnegotiation", "sslpassword"),
    *("ssl_min_protocol_version", "ssl_max_protocol_version", *FILES, *NUMBERS, *NOT_PASSED_ON),
)
"""An option that asyncpg does not know would be a setting of the server's, which a pooler refuses as if it were away."""

CONNECT_SECONDS: Final = 10
"""How long a connection to PostgreSQL may take to open, unless the URL says otherwise."""

ENCODE: Final = (
    "must have special characters in its user name, password and options percent-encoded (@ as %40, / as %2F, "
    ": as %3A, ? as %3F, # as %23)"
)

_NO_FILE: Final = "must name a file, such as sqlite:///flowactions.db: in memory, each connection would have a database of its own"


def parse_database_url(text: str) -> str:
    """Parse a database URL as operators and providers write it; returns one for SQLAlchemy.

    Raises:
        ValueError: it cannot be used; the message continues after the setting's name and holds no value.
    """
    scheme, separator, rest = text.partition("://")
    is_sqlite = scheme in {"sqlite", "sqlite+aiosqlite"}
    if not separator or not (is_sqlite or scheme in {"postgres", "postgresql", "postgresql+asyncpg"}):
        raise ValueError("must start with sqlite:// or postgresql://")
    if any(ord(character) < 32 or ord(character) == 127 for character in unquote(rest)):
        raise ValueError("must not contain control characters")
    return _parse_sqlite(rest) if is_sqlite else _parse_postgresql(rest)


def same_database(one: URL, other: URL) -> bool:
    """Return whether two URLs name the same database; driver and user may differ."""

    def place(url: URL) -> tuple[Any, ...]:
        if (path := sqlite_path(url)) is not None:
            return (path.resolve(),)
        host = url.host or url.query.get("host", "localhost")
        port = url.port or url.query.get("port", 5432)
        return "localhost" if host in {"127.0.0.1", "::1"} else host, port, url.database or url.username

    return place(one) == place(other)


def secrets_of(url: URL) -> tuple[str, ...]:
    """Return the parts of a URL that no message may hold: user name, password and values of the query."""
    values = [url.username or "", url.password or ""]
    for name, value in url.query.items():
        if name not in NUMBERS and name not in SQLITE_OPTIONS and value not in SSL_MODES:
            values += [value] if isinstance(value, str) else value
    forms = {
        form
        for value in filter(None, values)
        for form in (value, quote(value), quote(value, safe=""), quote_plus(value), repr(value)[1:-1])
    }
    return tuple(sorted(forms, key=len, reverse=True))


def _parse_postgresql(rest: str) -> str:
    """Parse what follows ``postgresql://``. asyncpg reads the result when it connects."""
    before, _, query = rest.partition("?")
    authority, slash, path = before.partition("/")
    userinfo, at, hosts = authority.rpartition("@")
    # A reserved character in a password ends a part early. The rest would be read as a host, a database or an option.
    if "#" in rest or any("@" in part for part in (userinfo, path, query)):
        raise ValueError(ENCODE)
    try:
        pairs = parse_qsl(query, strict_parsing=bool(query))
        if "," in hosts:  # SQLAlchemy knows one host
            pairs, hosts = [("host", hosts), *pairs], ""
        options = dict(pairs)
        if "host" in options:
            options["host"] = ",".join(value for name, value in pairs if name == "host")
        url = make_url(f"postgresql+asyncpg://{userinfo}{at}{hosts}{slash}{path}")
        if not 0 < (1 if url.port is None else url.port) < 65536:
            raise ValueError  # noqa: TRY301
    except (SQLAlchemyError, ValueError):
        raise ValueError(
            f"must be a URL such as postgresql://user:password@host:5432/database, and {ENCODE.removeprefix('must ')}"
        ) from None
    for name, value in options.items():
        if name not in POSTGRESQL_OPTIONS:
            raise ValueError(_unsupported(name))
        several = "(,[0-9]{1,5})*" if name == "port" else ""
        if name in (*NUMBERS, "port") and not re.fullmatch("[0-9]{1,5}" + several, value):
            raise ValueError(f"must have a whole number as its option {name}")
    return url.set(query=options).render_as_string(hide_password=False)


def asyncpg_arguments(url: URL) -> dict[str, Any]:
    """Return the arguments with which asyncpg connects to the server of a parsed URL.

    Raises:
        OSError: a file that an option names cannot be read; the message names the option.
    """
    options = {name: str(value) for name, value in url.query.items() if name not in NOT_PASSED_ON}
    given: dict[str, Any] = {"timeout": int(options.pop("connect_timeout", 0)) or CONNECT_SECONDS}
    given |= {name: int(options.pop(name)) for name in NUMBERS if name in options}
    if (wanted := options.pop("ssl", None)) is not None:
        options["sslmode"] = {"true": "require", "false": "disable"}.get(wanted, wanted)
    if options.get("sslrootcert") == "system":  # as in libpq: the machine's authorities
        del options["sslrootcert"]
        given["ssl"] = context = ssl.create_default_context()
        if certificate := options.get("sslcert"):
            context.load_cert_chain(certificate, options.get("sslkey"), options.get("sslpassword", ""))
    for name in (each for each in FILES if each in options):
        try:
            Path(options[name]).read_bytes()
        except OSError as exc:
            # The file's name is part of the query, which no message holds.
            raise OSError(f"the file that the URL names as {name} cannot be read: {exc.strerror}") from None
    given["dsn"] = url.set(drivername="postgresql", query=options).render_as_string(hide_password=False)
    return given


def _parse_sqlite(rest: str) -> str:
    """Parse what follows ``sqlite://``."""
    if not rest.startswith("/"):
        if not rest or rest.startswith("?"):
            raise ValueError(_NO_FILE)
        raise ValueError("must have three slashes before a relative path and four before an absolute one")
    if rest.startswith("/~/"):
        rest = "/" + str(Path("~").expanduser()) + rest.removeprefix("/~")
    text = f"sqlite+aiosqlite://{rest}"
    malformed = "must be an SQLite URL such as sqlite:///path/to/file.db"
    try:
        url = make_url(text)
    except (SQLAlchemyError, ValueError):
        raise ValueError(malformed) from None
    if is_in_memory(url):
        raise ValueError(_NO_FILE)
    for name in url.query:
        if name not in SQLITE_OPTIONS:
            raise ValueError(_unsupported(name))
        if name in SQLITE_URI_OPTIONS and url.query.get("uri") not in {"true", "1", "yes", "on"}:
            raise ValueError(f"must have uri=true for the option {name}")
    try:
        url.get_dialect()().create_connect_args(url)
    except (SQLAlchemyError, ValueError):
        raise ValueError(malformed) from None
    return text


def is_in_memory(url: URL) -> bool:
    """Return whether an SQLite URL names a database without a file."""
    name = url.database or ""
    mode_in_name = dict(parse_qsl(name.partition("?")[2])).get("mode")
    return not name or ":memory:" in name or "memory" in (url.query.get("mode"), mode_in_name)


def sqlite_path(url: URL) -> Path | None:
    """Return the path of an SQLite database's file; ``None`` when it has none, and for PostgreSQL."""
    if url.get_backend_name() != "sqlite" or is_in_memory(url):
        return None
    name = (url.database or "").partition("?")[0]
    return Path(name.removeprefix("file:") if name.startswith("file:") else name).absolute()


def _unsupported(name: str) -> str:
    # Another name may be a part of a password that was not percent-encoded.
    shown = f"the option {name}" if re.fullmatch(r"[a-z][a-z0-9_]{0,39}", name) else "one of its options"
    return f"must not have {shown}, which is not supported"
