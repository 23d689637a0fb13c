"""Translates a parsed PostgreSQL URL into arguments of asyncpg."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

from sqlalchemy.engine import URL

from flowactions_plugin.storage.urls.postgresql import DEFAULT_PORT, FILES, SYSTEM_AUTHORITIES, servers_of

CONNECT_SECONDS: Final = 10
"""How long a connection to PostgreSQL may take to open, unless the URL says otherwise."""

NOT_PASSED_ON: Final = ("channel_binding", "gssencmode", "client_encoding")


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
