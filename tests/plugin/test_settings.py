from __future__ import annotations

import base64
import ipaddress
from typing import Any

import msgspec
import pytest

from flowactions_hookspecs import SettingsInvalid
from flowactions_plugin.settings import READERS, Settings, read_settings

KEY = base64.b64encode(b"k" * 32).decode()


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("FLOWACTIONS_ENVIRONMENT", "development", "environment", "development"),
        ("FLOWACTIONS_DATABASE_URL", "sqlite:///a.db", "database_url", "sqlite+aiosqlite:///a.db"),
        ("FLOWACTIONS_DATABASE_URL", "postgres://h/d", "database_url", "postgresql+asyncpg://h/d"),
        ("FLOWACTIONS_TICK_SECONDS", " 0.5 ", "tick_seconds", 0.5),
        ("FLOWACTIONS_CLAIM_LIMIT", "7", "claim_limit", 7),
        ("FLOWACTIONS_RETENTION_DAYS", "365", "retention_days", 365),
        (
            "FLOWACTIONS_EGRESS_ALLOW",
            "10.0.0.0/8, fd00::/8",
            "egress_allow",
            (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fd00::/8")),
        ),
        ("FLOWACTIONS_ENCRYPTION_KEYS", f"{KEY},{KEY}", "encryption_keys", (b"k" * 32, b"k" * 32)),
        ("FLOWACTIONS_CONNECTIONS_PATH", "/admin/connections", "connections_path", "/admin/connections"),
        (
            "FLOWACTIONS_DASHBOARD_ORIGINS",
            "https://App.example.com:443, http://localhost:3000,http://[::1]:8080",
            "dashboard_origins",
            ("https://app.example.com", "http://localhost:3000", "http://[::1]:8080"),
        ),
        ("BACKEND_PUBLIC_URL", "https://example.com/api/", "public_url", "https://example.com/api"),
        ("CHAT_API_URL", "http://127.0.0.1:9/api", "chat_api_url", "http://127.0.0.1:9/api/"),
        (
            "CHAT_AUTHORIZE_URL",
            "https://example.com/authorize",
            "chat_authorize_url",
            "https://example.com/authorize",
        ),
        ("CHAT_CLIENT_ID", "id", "chat_client_id", "id"),
        ("CHAT_CLIENT_SECRET", "secret", "chat_client_secret", "secret"),
        ("CHAT_BOT_TOKEN", "xoxb-1", "chat_bot_token", "xoxb-1"),
    ],
)
def test_a_setting_is_read_from_its_text(name: str, text: str, field: str, value: Any) -> None:
    """Each setting's text becomes a typed value."""
    assert getattr(read_settings({name: text}), field) == value


def test_every_setting_is_documented_and_named_once() -> None:
    """Every field has a setting of its own, and the docstring names it."""
    fields = [field for field, _ in READERS.values()]
    assert sorted(fields) == sorted(Settings.__struct_fields__)
    for name in READERS:
        assert f"``{name}``" in (Settings.__doc__ or "")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("FLOWACTIONS_ENVIRONMENT", "staging"),
        ("FLOWACTIONS_DATABASE_URL", "mysql://h/d"),
        ("FLOWACTIONS_DATABASE_URL", "flowactions.db"),
        ("FLOWACTIONS_TICK_SECONDS", "0.001"),
        ("FLOWACTIONS_TICK_SECONDS", "nan"),
        ("FLOWACTIONS_TICK_SECONDS", "soon"),
        ("FLOWACTIONS_CLAIM_LIMIT", "1.5"),
        ("FLOWACTIONS_CLAIM_LIMIT", "-1"),
        ("FLOWACTIONS_RETENTION_DAYS", "9999"),
        ("FLOWACTIONS_EGRESS_ALLOW", "10.0.0.1/8"),
        ("FLOWACTIONS_EGRESS_ALLOW", "everything"),
        ("FLOWACTIONS_ENCRYPTION_KEYS", "c2hvcnQ="),
        ("FLOWACTIONS_ENCRYPTION_KEYS", "not base64!"),
        ("FLOWACTIONS_CONNECTIONS_PATH", "//evil.example"),
        ("FLOWACTIONS_CONNECTIONS_PATH", "https://evil.example"),
        *(
            ("FLOWACTIONS_DASHBOARD_ORIGINS", text)
            for text in (
                "dash.example.org",
                "https://app.example.com/",
                "https://app.example.com/path",
                "https://user:hush@app.example.com",
                "https://app.example.com?a=b",
                "https://app.example.com:99999",
                "https://app.example.com:x",
                "https://*.example.com",
                "https://ok.example.com,null",
                "*",
                "ftp://app.example.com",
            )
        ),
        ("BACKEND_PUBLIC_URL", "example.com"),
        ("BACKEND_PUBLIC_URL", "https://example.com/?a=b"),
        ("CHAT_API_URL", "ftp://example.com"),
    ],
)
def test_what_cannot_be_used_is_named_and_its_value_is_not_shown(name: str, text: str) -> None:
    """The error names the setting and what it must be, and keeps the value to itself."""
    with pytest.raises(SettingsInvalid, match=rf"{name} must be|{name} must start") as error:
        read_settings({name: text})
    assert text not in str(error.value)


def test_one_error_lists_everything() -> None:
    """All mistakes are told at once."""
    with pytest.raises(SettingsInvalid) as error:
        read_settings(
            {"FLOWACTIONS_TICK_SECONDS": "x", "FLOWACTIONS_CLAIM_LIMIT": "x", "FLOWACTIONS_NOPE": "1"}
        )
    for name in ("FLOWACTIONS_TICK_SECONDS", "FLOWACTIONS_CLAIM_LIMIT", "FLOWACTIONS_NOPE does not exist"):
        assert name in str(error.value)


def test_other_programs_settings_are_left_alone() -> None:
    """An environment full of other names is fine, and an empty text is a setting that is not set."""
    settings = read_settings(
        {"PATH": "/bin", "CHAT_OTHER": "x", "FLOWACTIONS_TEST_X": "y", "CHAT_BOT_TOKEN": " "}
    )
    assert msgspec.structs.asdict(settings) == msgspec.structs.asdict(Settings())


def test_no_repr_shows_a_secret() -> None:
    """Settings can be logged without leaking."""
    settings = read_settings({"CHAT_BOT_TOKEN": "xoxb-hush", "CHAT_CLIENT_SECRET": "hush"})
    assert "hush" not in repr(settings)
    assert "hush" not in str(settings)
