from __future__ import annotations

import base64
import datetime as dt
import ipaddress
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from flowactions_hookspecs import SettingsInvalid
from flowactions_plugin.settings.model import READERS, Settings, read_settings
from flowactions_plugin.settings.urls import parse_url

REFERENCE = (Path(__file__).parents[2] / "docs/reference/settings.md").read_text()
KEY = base64.b64encode(b"k" * 32).decode()


@pytest.mark.parametrize(
    ("name", "text", "field", "value"),
    [
        ("FLOWACTIONS_ENVIRONMENT", "development", "environment", "development"),
        ("FLOWACTIONS_DATABASE_URL", "sqlite:///a.db", "database_url", "sqlite+aiosqlite:///a.db"),
        ("FLOWACTIONS_DATABASE_URL", "postgres://h/d", "database_url", "postgresql+asyncpg://h/d"),
        ("FLOWACTIONS_TICK_SECONDS", " 0.5 ", "tick_seconds", 0.5),
        ("FLOWACTIONS_CLAIM_LIMIT", "7", "claim_limit", 7),
        ("FLOWACTIONS_DELIVERY_TIMEOUT", "60", "delivery_timeout", 60),
        ("FLOWACTIONS_AUTO_PAUSE", "off", "auto_pause", None),
        ("FLOWACTIONS_AUTO_PAUSE", " 20, 30m ", "auto_pause", (20, 1800)),
        ("FLOWACTIONS_AUTO_PAUSE", "1,24h", "auto_pause", (1, 86400)),
        ("FLOWACTIONS_RETRY_SCHEDULE", "default", "retry_schedule", ()),
        ("FLOWACTIONS_RETRY_SCHEDULE", "long", "retry_schedule", (5, 300, 1800, 7200, 18000, 36000, 36000)),
        ("FLOWACTIONS_RETRY_SCHEDULE", "1s", "retry_schedule", (1,)),
        ("FLOWACTIONS_RETRY_SCHEDULE", "10s, 5m,30m ,2h", "retry_schedule", (10, 300, 1800, 7200)),
        ("FLOWACTIONS_RETRY_SCHEDULE", "24h,1440m,86400s", "retry_schedule", (86400,) * 3),
        ("FLOWACTIONS_RETRY_SCHEDULE", ",".join(["1h"] * 9), "retry_schedule", (3600,) * 9),
        ("FLOWACTIONS_RETENTION_DAYS", "365", "retention_days", 365),
        (
            "FLOWACTIONS_EGRESS_ALLOW",
            "10.0.0.0/8, fd00::/8",
            "egress_allow",
            (ipaddress.ip_network("10.0.0.0/8"), ipaddress.ip_network("fd00::/8")),
        ),
        (
            "FLOWACTIONS_EGRESS_ALLOW",
            "Hooks.Internal.Example., *.BÜCHER.example,10.0.0.0/8,localhost",
            "egress_allow",
            (
                "hooks.internal.example",
                "*.xn--bcher-kva.example",
                ipaddress.ip_network("10.0.0.0/8"),
                "localhost",
            ),
        ),
        ("FLOWACTIONS_EGRESS_PROXY", "http://proxy:3128/", "egress_proxy", "http://proxy:3128"),
        (
            "FLOWACTIONS_EGRESS_PROXY",
            "HTTPS://a%40b:p%2F:w%3F@[::1]:3128",
            "egress_proxy",
            "https://a%40b:p%2F:w%3F@[::1]:3128",
        ),
        ("FLOWACTIONS_EGRESS_PROXY_TUNNEL", "https", "egress_proxy_tunnel", "https"),
        ("FLOWACTIONS_EGRESS_RESOLVE", "local", "egress_resolve", "local"),
        ("FLOWACTIONS_MAX_BODY_BYTES", "1024", "max_body_bytes", 1024),
        ("FLOWACTIONS_STANDARD_WEBHOOKS", "on", "standard_webhooks", True),
        ("FLOWACTIONS_STANDARD_WEBHOOKS", "off", "standard_webhooks", False),
        ("FLOWACTIONS_ENCRYPTION_KEYS", f"{KEY},{KEY}", "encryption_keys", (b"k" * 32, b"k" * 32)),
        ("FLOWACTIONS_CONNECTIONS_PATH", "/admin/connections", "connections_path", "/admin/connections"),
        (
            "FLOWACTIONS_DASHBOARD_ORIGINS",
            "https://App.example.com:443, http://localhost:3000,http://[::1]:8080",
            "dashboard_origins",
            ("https://app.example.com", "http://localhost:3000", "http://[::1]:8080"),
        ),
        ("BACKEND_PUBLIC_URL", "https://example.com/api/", "public_url", "https://example.com/api"),
        ("BACKEND_PUBLIC_URL", "https://Exämple.com:8443", "public_url", "https://xn--exmple-cua.com:8443"),
        ("FLOWACTIONS_CONNECTIONS_PATH", "/#/connections", "connections_path", "/#/connections"),
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


def test_every_field_has_a_setting_of_its_own() -> None:
    """The reference page has a row for each."""
    assert tuple(field for field, _ in READERS.values()) == Settings.__struct_fields__


def test_defaults_and_limits_are_those_of_the_reference() -> None:
    """A default that is given is as if nothing were; of a number, both limits are read, and nothing beyond them."""
    for name, default in re.findall(r"^\| `([A-Z_]+)` \| (none|`\S+`) \|", REFERENCE, re.MULTILINE):
        field = READERS[name][0]
        values = (None, ()) if default == "none" else (getattr(read_settings({name: default[1:-1]}), field),)
        assert getattr(Settings(), field) in values, name
    limits = re.findall(r"^\| `([A-Z_]+)` \|.*, ([0-9.]+) to ([0-9]+)\b", REFERENCE, re.MULTILINE)
    assert len(limits) == 8
    for name, least, most in limits:
        field = READERS[name][0]
        assert [getattr(read_settings({name: text}), field) for text in (least, most)] == [
            float(least),
            float(most),
        ]
        for text in (
            f"{float(least) - 0.01}" if "." in least else f"{int(least) - 1}",
            f"{int(most) + 1}",
            "x",
        ):
            with pytest.raises(SettingsInvalid, match=f"{name} must be a.* number from {least} to {most}"):
                read_settings({name: text})


@pytest.mark.parametrize(
    ("given", "per_destination", "slots"),
    [
        ({}, None, 50),
        ({"FLOWACTIONS_DELIVERY": "continuous"}, 10, 100),
        ({"FLOWACTIONS_DESTINATION_LIMIT": "3"}, 3, 50),
    ],
)
def test_a_mode_has_its_own_limits(given: dict[str, str], per_destination: int | None, slots: int) -> None:
    """Attempts at once in a worker, and to one destination."""
    settings = read_settings(given)
    assert (settings.per_destination, settings.slots) == (per_destination, slots)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("FLOWACTIONS_STANDARD_WEBHOOKS", "yes"),
        ("FLOWACTIONS_DATABASE_URL", "mysql://h/d"),
        ("FLOWACTIONS_DATABASE_URL", "flowactions.db"),
        ("FLOWACTIONS_TICK_SECONDS", "nan"),
        *(
            ("FLOWACTIONS_RETRY_SCHEDULE", text)
            for text in (
                "short",
                "20m,25h",
                "0s,77m",
                "90",
                "90s,",
                "1.5h",
                "90S",
                "٣m",
                "86401s",
            )
        ),
        *(
            ("FLOWACTIONS_EGRESS_ALLOW", text)
            for text in (
                "*.*.example.com",
                "a.*.example.com",
                "*hooks.example.com",
                "hooks..example.com",
                "-a.example.com",
                "hooks.example.com:443",
                "https://hooks.example.com",
                "10.0.0.256",
                "0x7f",
                "*.1",
                "*.10.0.0.0/8",
                "b\u2044.example.com",
                "x" * 64 + ".example.com",
                "a." * 127 + "com",
            )
        ),
        ("FLOWACTIONS_ENCRYPTION_KEYS", "not base64!"),
        ("FLOWACTIONS_CONNECTIONS_PATH", "//evil.example"),
        ("FLOWACTIONS_CONNECTIONS_PATH", "https://evil.example"),
        *(
            ("FLOWACTIONS_DASHBOARD_ORIGINS", text)
            for text in (
                "dash.example.org",
                "https://app.example.com/",
                "https://user:hush@app.example.com",
                "https://app.example.com?a=b",
                "https://app.example.com:99999",
                "https://*.example.com",
                "https://ok.example.com,null",
                "*",
                "ftp://app.example.com",
            )
        ),
        ("FLOWACTIONS_CONNECTIONS_PATH", "/connections\r\nx: y"),
        ("FLOWACTIONS_EGRESS_PROXY_TUNNEL", "none"),
        ("FLOWACTIONS_EGRESS_RESOLVE", "remote"),
        ("FLOWACTIONS_ENCRYPTION_KEYS", "ключ"),
        ("AUTH_WEBHOOK_SIGNING_SECRET", ", ,"),
        ("AUTH_WEBHOOK_SIGNING_SECRET", "whsec_!"),
        ("CHAT_CLIENT_SECRET", "a\nb"),
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


PROXY = "FLOWACTIONS_EGRESS_PROXY"
ENCODE = "percent-encoded (@ as %40)"


@pytest.mark.parametrize(
    ("name", "text", "advice"),
    [
        (PROXY, "proxy:3128", "a URL that starts with http:// or https://"),
        (PROXY, "socks5://proxy:1080", "a URL that starts with http:// or https://"),
        (PROXY, "http://u:p@w@proxy:3128", ENCODE),
        (PROXY, "http://u:p/w@proxy:3128", ENCODE),
        (PROXY, "http://u:80/w@proxy:3128", ENCODE),
        (PROXY, "http://u:p\\w@proxy:3128", ENCODE),
        (PROXY, "http://u:p%w@proxy:3128", ENCODE),
        (PROXY, "http://u:p%ffw@proxy:3128", "as UTF-8"),
        (PROXY, "http://a%3ab:w@proxy:3128", "user name holds no colon"),
        (PROXY, "http://proxy:0", "a port from 1 to 65535 if any"),
        (PROXY, "http://proxy:99999", "a port from 1 to 65535 if any"),
        (PROXY, "http://proxy:８０", "a port from 1 to 65535 if any"),
        (PROXY, "http://[::1", "host is a name or an address"),
        (PROXY, "http://[1.2.3.4]:80", "host is a name or an address"),
        (PROXY, "http:///", "host is a name or an address"),
        (PROXY, "http://proxy:3128/path", "without a path"),
        (PROXY, "http://proxy:3128?x=1", "without a query"),
        ("BACKEND_PUBLIC_URL", "https://u:p@example.com", "without a user name or password"),
        ("BACKEND_PUBLIC_URL", "https://example.com/@x", "an @ in its path is written %40"),
        ("CHAT_API_URL", "https://example.com/#x", "without a query or fragment"),
        ("CHAT_AUTHORIZE_URL", "https://exam ple.com", "without spaces"),
        ("FLOWACTIONS_EGRESS_ALLOW", "10.0.0.1/8", "networks such as 10.20.0.0/16"),
        ("FLOWACTIONS_EGRESS_ALLOW", "*", "host names such as hooks.internal.example or *.internal.example"),
        ("FLOWACTIONS_EGRESS_ALLOW", "*.", "host names such as hooks.internal.example or *.internal.example"),
        ("FLOWACTIONS_CONNECTIONS_PATH", "/c?x", "a path without a query"),
        *(
            ("FLOWACTIONS_AUTO_PAUSE", text, "must be off, or two values such as 20,30m")
            for text in (
                "on",
                "20",
                "0,30m",
                "20,30",
                "20,25h",
                "100000,1m",
                "20,1s,1s",
            )
        ),
        ("FLOWACTIONS_RETRY_SCHEDULE", "7s,x,25h", "such as 10s,5m,30m,2h: delay 2, 3 cannot be read"),
        ("FLOWACTIONS_RETRY_SCHEDULE", ",".join(["7h"] * 10), "1 to 9 delays from 1s to 24h with their units"),
        ("FLOWACTIONS_CLAIM_LIMIT", "1.5", "a whole number from 1 to 1000"),
        ("FLOWACTIONS_MAX_BODY_BYTES", "1", "a whole number from 1024 to 16777216"),
        ("FLOWACTIONS_ENVIRONMENT", "prod", "production or development"),
        ("FLOWACTIONS_EGRESS_CA_FILE", "/nowhere", "a readable file of certificates in PEM"),
        ("FLOWACTIONS_EGRESS_RESOLVE", "proxy", "local unless FLOWACTIONS_EGRESS_PROXY is set"),
        ("FLOWACTIONS_EGRESS_PROXY_TUNNEL", "all", "https unless FLOWACTIONS_EGRESS_PROXY is set"),
        ("AUTH_WEBHOOK_SIGNING_SECRET", "whsec_!", "such as whsec_…, which is base64"),
        ("AUTH_WEBHOOK_SIGNING_SECRET", "whsec_c2hvcnQ=", "at least 16 bytes each"),
        ("FLOWACTIONS_ALERTS_URL", "https://alerts.example/?x=1", "have a FLOWACTIONS_ALERTS_SECRET beside it"),
        ("FLOWACTIONS_ALERTS_SECRET", KEY, "one secret: whsec_"),
        ("FLOWACTIONS_ENCRYPTION_KEYS", f"{KEY},c2hvcnQ=", "base64 of 32 random bytes"),
        ("CHAT_BOT_TOKEN", "xoxb 1", "without spaces"),
        ("CHAT_SIGNING_SECRET", "a\x00b", "without control characters"),
    ],
)
def test_the_advice_fits_what_is_wrong(name: str, text: str, advice: str) -> None:
    """Each error says what this setting has to be, and only one that reads networks speaks of them."""
    with pytest.raises(SettingsInvalid) as error:
        read_settings({name: text})
    assert f"{name} must " in str(error.value)
    assert advice in str(error.value)
    assert ("networks" in str(error.value)) == (name == "FLOWACTIONS_EGRESS_ALLOW")


@pytest.mark.parametrize("name", READERS)
def test_whatever_a_setting_holds_is_read_or_told_as_wrong(name: str) -> None:
    """No text makes a reader raise anything else."""
    for text in (
        "\ud800",
        "\x00",
        "http://[",
        "http://a:１",
        "[::1",
        "%",
        ",",
        "é",
        "9" * 5000,
        "1e999",
        "nan",
        "/\udc80",
    ):
        with suppress(SettingsInvalid):
            read_settings({name: text})


def test_an_auth_secret_has_at_least_sixteen_bytes() -> None:
    """Each of several is counted by its bytes, not by the length of its base64."""
    long, short = (base64.b64encode(b"s" * size).decode() for size in (16, 15))
    assert read_settings({"AUTH_WEBHOOK_SIGNING_SECRET": long}).auth_secrets == (f"whsec_{long}",)
    for text in (short, f"whsec_{short}", f"{long},{short}"):
        with pytest.raises(SettingsInvalid, match="at least 16 bytes"):
            read_settings({"AUTH_WEBHOOK_SIGNING_SECRET": text})


def test_only_a_proxy_can_be_left_to_resolve() -> None:
    """FLOWACTIONS_EGRESS_RESOLVE=proxy needs a proxy; with one, it is taken."""
    for proxy in ({}, {PROXY: " "}, {PROXY: "proxy"}):
        with pytest.raises(SettingsInvalid):
            read_settings({"FLOWACTIONS_EGRESS_RESOLVE": "proxy", **proxy})
    settings = read_settings({"FLOWACTIONS_EGRESS_RESOLVE": "proxy", PROXY: "http://proxy:3128"})
    assert (settings.egress_resolve, settings.egress_proxy) == ("proxy", "http://proxy:3128")


@pytest.mark.parametrize(
    ("userinfo", "credentials"), [("", None), ("a%40b:p%2F:@", ("a@b", "p/:")), ("a@", ("a", ""))]
)
def test_credentials_of_a_url_are_decoded(userinfo: str, credentials: tuple[str, str] | None) -> None:
    """A URL without a user name has none."""
    assert parse_url(f"http://{userinfo}proxy:3128", with_userinfo=True).credentials == credentials


def an_authority() -> bytes:
    """Make a certificate in PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "inner")])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now)
        .not_valid_after(now + dt.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM)


def test_authorities_are_read_from_their_file_once(tmp_path: Path) -> None:
    """Comments are left alone; a file without a certificate, or with a broken one, is an error that shows nothing of it."""
    pem = an_authority()
    file = tmp_path / "ca.pem"
    setting = {"FLOWACTIONS_EGRESS_CA_FILE": str(file)}
    file.write_bytes("# Größe\n".encode() + pem + pem)
    assert (read_settings(setting).egress_ca or "").count("BEGIN CERTIFICATE") == 2
    broken = pem.replace(b"\nMII", b"\nMII~hush")
    for content in (b"", b"hush", broken, pem + broken, pem[:100], pem + b"#" * (4 << 20)):
        file.write_bytes(content)
        with pytest.raises(SettingsInvalid, match="FLOWACTIONS_EGRESS_CA_FILE must name") as error:
            read_settings(setting)
        assert "hush" not in str(error.value)
    for path in (tmp_path, tmp_path / "none", "/dev/null", "a\x00b"):
        with pytest.raises(SettingsInvalid, match="FLOWACTIONS_EGRESS_CA_FILE must name"):
            read_settings({"FLOWACTIONS_EGRESS_CA_FILE": str(path)})


def test_one_error_lists_everything() -> None:
    """All mistakes are told at once."""
    with pytest.raises(SettingsInvalid) as error:
        read_settings(
            {
                "FLOWACTIONS_TICK_SECONDS": "x",
                "FLOWACTIONS_CLAIM_LIMIT": 7,  # type: ignore[dict-item]
                "FLOWACTIONS_HOST_WORKER": "own",
                "FLOWACTIONS_NOPE": "1",
            }
        )
    for wrong in (
        "FLOWACTIONS_TICK_SECONDS must be a number",
        "FLOWACTIONS_CLAIM_LIMIT must be text",
        "FLOWACTIONS_HOST_WORKER must be on or off unless",
        "FLOWACTIONS_NOPE does not exist",
    ):
        assert wrong in str(error.value)


@pytest.mark.parametrize("name", list(READERS))
def test_a_setting_in_lower_case_is_a_mistake(name: str) -> None:
    """The error names the right one, also after a typing mistake; beside the right one it is another program's."""
    for wrong in (name.lower(), name.title()):
        with pytest.raises(SettingsInvalid, match=rf"{wrong} does not exist \(did you mean {name}\?\)"):
            read_settings({wrong: ""})
    with pytest.raises(
        SettingsInvalid, match=r"flowactions_delivry does not exist .did you mean FLOWACTIONS_DELIVERY"
    ):
        read_settings({"flowactions_delivry": "continuous"})
    assert msgspec.structs.asdict(read_settings({name.lower(): "x", name: ""})) == msgspec.structs.asdict(
        Settings()
    )


def test_other_programs_settings_are_left_alone() -> None:
    """An environment full of other names is fine, and an empty text is a setting that is not set."""
    settings = read_settings(
        {
            "PATH": "/bin",
            "CHAT_OTHER": "x",
            "FLOWACTIONS_TEST_X": "y",
            "flowactions_test_x": "y",
            "CHAT_BOT_TOKEN": " ",
        }
    )
    assert msgspec.structs.asdict(settings) == msgspec.structs.asdict(Settings())
