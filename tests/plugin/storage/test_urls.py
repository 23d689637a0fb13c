"""Database URLs as operators and providers write them."""

from __future__ import annotations

import inspect
import os
import ssl
from pathlib import Path
from typing import Any

import pytest
from asyncpg.connect_utils import _parse_connect_dsn_and_args
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from flowactions_hookspecs import SettingsInvalid
from flowactions_plugin.errors import StorageUnavailable
from flowactions_plugin.storage.urls import (
    asyncpg_arguments,
    parse_database_url,
    same_database,
    secrets_of,
    sqlite_path,
)
from tests.authority import inner_authority
from tests.outages import Door, a_database, parsed


def arguments(url: str) -> tuple[Any, ...]:
    """Give what asyncpg reads of a URL: its addresses, user, password and database."""
    wanted = dict.fromkeys(inspect.signature(_parse_connect_dsn_and_args).parameters)
    addresses, found = _parse_connect_dsn_and_args(
        **{**wanted, "dsn": asyncpg_arguments(make_url(parse_database_url(url)))["dsn"]}
    )
    return addresses, found.user, found.password, found.database


class TestPostgreSQL:
    @pytest.mark.parametrize(
        ("url", "expected"),
        [
            ("postgres://u:p@h/d", ([("h", 5432)], "u", "p", "d")),
            ("postgresql+asyncpg://u:p@h:6432/d", ([("h", 6432)], "u", "p", "d")),
            (
                "postgresql://u%40x:p%40%2F%3A%3F%23%25%20ö@[::1]:1/d%20e",
                ([("::1", 1)], "u@x", "p@/:?#% ö", "d e"),
            ),
            (
                "postgresql://u:p@a:1,b/d?target_session_attrs=primary",
                ([("a", 1), ("b", 5432)], "u", "p", "d"),
            ),
            ("postgresql://u:p@/d?host=/srv/x", (["/srv/x/.s.PGSQL.5432"], "u", "p", "d")),
            ("postgresql://u:p@%2Fsrv%2Fx/d", (["/srv/x/.s.PGSQL.5432"], "u", "p", "d")),
            ("postgresql://u:p@/d?host=a:1&host=b:2", ([("a", 1), ("b", 2)], "u", "p", "d")),
            ("postgresql://u:p@/d?host=a,b&port=1,2", ([("a", 1), ("b", 2)], "u", "p", "d")),
            (
                "postgresql://?host=h&port=7&user=u&password=p&dbname=d&ssl=true",
                ([("h", 7)], "u", "p", "d"),
            ),
            (
                "postgresql://u:p@h/d?sslmode=require&channel_binding=require&gssencmode=disable",
                ([("h", 5432)], "u", "p", "d"),
            ),
        ],
    )
    def test_the_driver_reads_a_url_as_it_is_meant(self, url: str, expected: tuple[Any, ...]) -> None:
        """Parsing a parsed URL changes nothing."""
        assert arguments(url) == expected
        assert parse_database_url(parse_database_url(url)) == parse_database_url(url)

    def test_some_options_are_arguments_of_the_driver(self) -> None:
        """A timeout in seconds, of which 0 is the default, and the sizes of caches."""
        for value, seconds in (("3", 3), ("0", 10)):
            url = make_url(
                parse_database_url(f"postgresql://h/d?connect_timeout={value}&statement_cache_size=0")
            )
            given = asyncpg_arguments(url)
            assert (given["timeout"], given["statement_cache_size"]) == (seconds, 0)
            assert given["dsn"] == "postgresql://h/d"

    def test_sslrootcert_system_uses_the_systems_authorities(self) -> None:
        """As in libpq, it also verifies the host's name."""
        context = asyncpg_arguments(make_url("postgresql://h/d?sslrootcert=system"))["ssl"]
        assert context.check_hostname
        assert context.verify_mode is ssl.CERT_REQUIRED

    @pytest.mark.parametrize(
        ("url", "told"),
        [
            ("postgresql://h:0/d", "must be a URL such as"),
            ("postgresql://h:65536/d", "must be a URL such as"),
            ("postgresql://h:x/d", "must be a URL such as"),
            ("postgresql:///d?host=h&port=x", "a whole number as its option port"),
            ("postgresql://[::1/d", "must be a URL such as"),
            ("postgresql://u:p@ss@h/d", "percent-encoded"),
            ("postgresql://u:p/ss@h/d", "percent-encoded"),
            ("postgresql://u:1/2@h/d", "percent-encoded"),
            ("postgresql://u:1?2@h/d", "percent-encoded"),
            ("postgresql://u:1#2@h/d", "percent-encoded"),
            ("postgresql://u:%00@h/d", "control characters"),
            ("postgresql://h/d?connect_timeout=soon", "a whole number as its option connect_timeout"),
            ("postgresql://h/d?pgbouncer=true", "the option pgbouncer"),
            ("postgresql://h/d?sslmode", "must be a URL such as"),
            ("mysql://h/d", "sqlite:// or postgresql://"),
        ],
    )
    def test_an_invalid_url_is_refused_at_load(self, url: str, told: str) -> None:
        """The message says what is required."""
        with pytest.raises(SettingsInvalid, match="FLOWACTIONS_DATABASE_URL must") as raised:
            parsed(url)
        assert told in str(raised.value)

    @given(
        secret=st.text(st.characters(codec="utf-8"), max_size=8).map(lambda each: f"MARKER{each}MARKER"),
        form=st.sampled_from(
            [
                "postgresql://u:{}@h/d",
                "postgresql://{}:p@h/d",
                "postgresql://u:1{}@h:99999/d",
                "postgresql://u:1/{}@h/d",
                "postgresql://u:1?{}@h/d",
                "postgresql://u:1#{}@h/d",
                "postgresql://h/d?sslmode={}",
                "postgresql://h/d?password={}&port=x",
                "postgresql://h/d?{}",
                "postgresql://h/d?{}=1",
                "postgresql://[{}/d",
                "sqlite:///x?timeout={}",
                "sqlite://{}@/x",
                "{}://h/d",
            ]
        ),
    )
    def test_no_message_holds_a_value(self, secret: str, form: str) -> None:
        """Whatever it is, and whichever part of the URL it becomes without encoding."""
        told = ""
        try:
            parsed(form.format(secret))
        except SettingsInvalid as exc:
            told = str(exc)
        assert "MARKER" not in told

    def test_urls_of_the_same_database_are_equal(self) -> None:
        """Whatever the user, the driver and the name of loopback."""
        one = make_url("postgresql+asyncpg://a:b@127.0.0.1/d")
        assert same_database(one, make_url("postgresql+psycopg://localhost:5432/d"))
        assert not same_database(one, make_url("postgresql+asyncpg://a:b@127.0.0.1/e"))
        assert not same_database(one, make_url("postgresql+asyncpg://a:b@127.0.0.1:1/d"))
        assert not same_database(one, make_url("postgresql+asyncpg://a:b@elsewhere/d"))
        assert not same_database(one, make_url("sqlite:///d"))
        # Without a name, it is that of the user.
        assert same_database(make_url("postgresql://d@localhost"), one)
        assert not same_database(make_url("postgresql://a@localhost"), one)
        assert same_database(make_url("sqlite:///d/../x.db"), make_url("sqlite+aiosqlite:///x.db"))

    def test_the_secret_parts_of_a_url(self) -> None:
        """User name, password and values of the query, except for options with a fixed set of values."""
        url = make_url("postgresql://ada:p%40ss@h/d?options=-c%20a%3Db&sslmode=require")
        assert {"ada", "p@ss", "p%40ss", "-c a=b"} <= set(secrets_of(url))
        assert "require" not in secrets_of(url)
        # As errors quote them, the longest first, so that no end of one is left.
        assert secrets_of(make_url("postgresql://a%5Cb@h/d")) == ("a%5Cb", "a\\\\b", "a\\b")
        assert secrets_of(make_url("sqlite:///x.db?timeout=300&uri=true")) == ()


class TestSQLite:
    @pytest.mark.parametrize(
        "url",
        [
            "sqlite://",
            "sqlite:///",
            "sqlite:///:memory:",
            "sqlite+aiosqlite:///:memory:",
            "sqlite://?cache=shared",
            "sqlite:///file::memory:?cache=shared&uri=true",
            "sqlite:///file:x?mode=memory&cache=shared&uri=true",
            "sqlite:///x.db?mode=memory",
        ],
    )
    def test_an_in_memory_url_is_refused(self, url: str) -> None:
        """Each connection would have its own database."""
        with pytest.raises(SettingsInvalid, match="each connection would have a database of its own"):
            parsed(url)

    @pytest.mark.parametrize(
        ("url", "told"),
        [
            ("sqlite://f.db", "three slashes"),
            ("sqlite://user:x@/f.db", "three slashes"),
            ("sqlite:///f.db?colour=red", "the option colour"),
            ("sqlite:///f.db?mode=ro", "uri=true for the option mode"),
            ("sqlite:///f.db?timeout=soon", "must be an SQLite URL"),
        ],
    )
    def test_an_invalid_url_is_refused_at_load(self, url: str, told: str) -> None:
        """The message says what is required."""
        with pytest.raises(SettingsInvalid, match=told):
            parsed(url)

    def test_paths_of_sqlite(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Relative to the working directory, absolute, or in the home directory."""
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        paths = {
            "sqlite:///f.db": tmp_path / "f.db",
            f"sqlite:///{tmp_path}/a b.db": tmp_path / "a b.db",
            "sqlite:///~/f.db": tmp_path / "home" / "f.db",
            f"sqlite:///file:{tmp_path}/f.db?mode=ro&uri=true": tmp_path / "f.db",
        }
        for url, path in paths.items():
            assert sqlite_path(make_url(parse_database_url(url))) == path


class TestConnecting:
    @pytest.fixture
    def door(self, postgres_url: str, tmp_path: Path) -> Door:
        """A port of the server's with TLS; its authority and another one are in files."""
        (tmp_path / "stranger.pem").write_text(inner_authority(tmp_path)[0])
        authority, context = inner_authority(tmp_path)
        (tmp_path / "authority.pem").write_text(authority)
        return Door(postgres_url, context)

    async def connected(self, url: str) -> str:
        """Connect as a URL says; gives the name that the server knows the connection by."""
        async with a_database(url) as database, database.read() as connection:
            query = "SELECT application_name FROM pg_stat_activity WHERE pid = pg_backend_pid()"
            return str((await connection.execute(text(query))).scalar_one())

    @pytest.mark.parametrize(
        ("options", "encrypted"),
        [
            ("sslmode=disable", False),
            ("sslmode=prefer", True),
            ("sslmode=require&channel_binding=require&connect_timeout=5", True),
            ("sslmode=verify-ca&sslrootcert={tmp}/authority.pem", True),
            ("sslmode=verify-full&sslrootcert={tmp}/authority.pem", True),
            ("ssl=true", True),
        ],
    )
    async def test_tls_options_and_application_name_reach_the_server(
        self, door: Door, options: str, encrypted: bool, tmp_path: Path
    ) -> None:
        """As the URL says."""
        query = f"{options.format(tmp=tmp_path)}&application_name=shop%20worker"
        async with door.url(query) as url:
            name = await self.connected(url)
        assert name == "shop worker"
        assert (door.plain == 0, door.encrypted > 0) == (encrypted, encrypted)

    @pytest.mark.parametrize(
        ("options", "told"),
        [
            ("sslmode=verify-full&sslrootcert={tmp}/stranger.pem", "certificate verify failed"),
            ("sslmode=verify-full&sslrootcert=system", "certificate verify failed"),
            (
                "sslmode=verify-full&sslrootcert={tmp}/not-there.pem",
                "the URL names as sslrootcert cannot be read",
            ),
        ],
    )
    async def test_a_server_with_an_untrusted_certificate_is_refused(
        self, door: Door, options: str, told: str, tmp_path: Path
    ) -> None:
        """The message says why, without a part of the query."""
        async with door.url(options.format(tmp=tmp_path)) as url:
            with pytest.raises(StorageUnavailable, match=told) as raised:
                await self.connected(url)
        assert str(tmp_path) not in str(raised.value)
        assert door.plain == 0

    @pytest.mark.parametrize(
        "option", ["sslmode=MARKER", "target_session_attrs=MARKER", "ssl_min_protocol_version=MARKER"]
    )
    async def test_a_value_that_the_driver_refuses_ends_the_start(self, option: str) -> None:
        """Waiting would change nothing. The message names the setting, and no value."""
        with pytest.raises(StorageUnavailable, match="the options of FLOWACTIONS_DATABASE_URL") as raised:
            async with a_database(f"postgresql://u:p@127.0.0.1:9/d?{option}"):
                pass
        assert "MARKER" not in str(raised.value)

    @pytest.mark.parametrize("shared", [False, True])
    async def test_a_url_without_a_user_where_the_system_has_none_ends_the_start(
        self, monkeypatch: pytest.MonkeyPatch, shared: bool
    ) -> None:
        """A container may run as a user id without a name."""
        for name in ("PGUSER", "LOGNAME", "USER", "LNAME", "USERNAME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
        url = "postgresql://127.0.0.1:9/d"
        engine = create_async_engine(parsed(url)) if shared else None
        with pytest.raises(StorageUnavailable, match="name the user in the URL"):
            async with a_database(url, engine=engine):
                pass

    async def test_session_options_are_passed_on(self, postgres_url: str) -> None:
        """``options``, as providers use it for routing and limits."""
        url = f"{postgres_url}&options=-c%20statement_timeout%3D4321"
        async with a_database(url) as database, database.read() as connection:
            assert (await connection.execute(text("SHOW statement_timeout"))).scalar_one() == "4321ms"

    async def test_a_password_with_special_characters_works(self, postgres_url: str) -> None:
        """The driver receives it decoded."""
        assert arguments("postgresql://u:%40%2F%3A%25@h/d")[2] == "@/:%"
        url = make_url(postgres_url)
        with_password = f"postgresql://{url.username}:%40%2F@/{url.database}?host={url.query['host']}"
        assert await self.connected(with_password) == ""
