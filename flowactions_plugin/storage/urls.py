"""Database URLs: parsed completely when settings are read, and translated for the drivers.

No message about them holds a part of a URL other than the name of an option.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote, quote_plus, unquote

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import SQLAlchemyError

from flowactions_plugin.storage.postgresql_urls import (
    CHOICES,
    NUMBERS,
    addresses_of,
    parse_postgresql,
    unsupported,
)

DRIVERS: Final = {
    "sqlite": "sqlite",
    "sqlite+aiosqlite": "sqlite",
    "postgres": "postgresql",
    "postgresql": "postgresql",
    "postgresql+asyncpg": "postgresql",
}

SQLITE_OPTIONS: Final = (
    "uri",
    "timeout",
    "isolation_level",
    "detect_types",
    "check_same_thread",
    "cached_statements",
)
SQLITE_URI_OPTIONS: Final = ("mode", "cache", "vfs", "immutable", "nolock", "psow")

_NO_FILE: Final = "must name a file, such as sqlite:///flowactions.db: in memory, each connection would have a database of its own"


def parse_database_url(text: str) -> str:
    """Parse a database URL as operators and providers write it; returns one for SQLAlchemy.

    Raises:
        ValueError: it cannot be used; the message continues after the setting's name and holds no value.
    """
    scheme, separator, rest = text.partition("://")
    backend = DRIVERS.get(scheme)
    if not separator or backend is None:
        raise ValueError("must start with sqlite:// or postgresql://")
    if any(ord(character) < 32 or ord(character) == 127 for character in unquote(rest)):
        raise ValueError("must not contain control characters")
    return _parse_sqlite(rest) if backend == "sqlite" else parse_postgresql(rest)


def same_database(one: URL, other: URL) -> bool:
    """Return whether two URLs name the same database; driver and user may differ."""
    if one.get_backend_name() != other.get_backend_name():
        return False
    if one.get_backend_name() == "sqlite":
        paths = sqlite_path(one), sqlite_path(other)
        return None not in paths and len({path.resolve() for path in paths if path is not None}) == 1
    return (addresses_of(one), one.database or one.username) == (
        addresses_of(other),
        other.database or other.username,
    )


def secrets_of(url: URL) -> tuple[str, ...]:
    """Return the parts of a URL that no message may hold: user name, password and values of the query."""
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


def _parse_sqlite(rest: str) -> str:
    """Parse what follows ``sqlite://``; returns a URL for SQLAlchemy.

    Raises:
        ValueError: it cannot be used; the message continues after the setting's name and holds no value.
    """
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


def _wrong_sqlite_option(url: URL) -> str | None:
    if is_in_memory(url):
        return _NO_FILE
    for name in url.query:
        if name in SQLITE_URI_OPTIONS:
            if url.query.get("uri") not in {"true", "1", "yes", "on"}:
                return f"must have uri=true for the option {name}"
        elif name not in SQLITE_OPTIONS:
            return unsupported(name)
    return None
