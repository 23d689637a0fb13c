"""Database URLs: parsed completely when settings are read, and translated for the drivers.

No message of this package holds a part of a URL other than the name of an option.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, quote_plus, unquote

from sqlalchemy.engine import URL

from flowactions_plugin.storage.urls.connect import asyncpg_arguments
from flowactions_plugin.storage.urls.postgresql import CHOICES, NUMBERS, addresses_of, parse_postgresql
from flowactions_plugin.storage.urls.sqlite import SQLITE_OPTIONS, is_in_memory, parse_sqlite, sqlite_path

__all__ = [
    "asyncpg_arguments",
    "is_in_memory",
    "parse_database_url",
    "same_database",
    "secrets_of",
    "sqlite_path",
]

DRIVERS: Final = {
    "sqlite": "sqlite",
    "sqlite+aiosqlite": "sqlite",
    "postgres": "postgresql",
    "postgresql": "postgresql",
    "postgresql+asyncpg": "postgresql",
}


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
    return parse_sqlite(rest) if backend == "sqlite" else parse_postgresql(rest)


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
