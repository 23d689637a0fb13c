"""A host's settings, checked against the methods that it has."""

from __future__ import annotations

from typing import Final

from flowactions_hookspecs import Host, SettingsInvalid, provides
from flowactions_plugin.settings.model import Settings, read_settings

AUTH_SECRET: Final = "AUTH_WEBHOOK_SIGNING_SECRET"  # noqa: S105  a setting's name


def settings_of(host: Host) -> Settings:
    """Read the settings of a host.

    Raises:
        SettingsInvalid: its message lists everything that is wrong, and never a value. A secret for the auth
            provider's events is wrong in a host that cannot handle them (§4.4).
    """
    unhandled = ""
    if str(host.settings.get(AUTH_SECRET, "")).strip() and not provides(host, "auth_event"):
        name = type(host).__name__
        unhandled = f"{AUTH_SECRET} is set, and {name} has no method auth_event: add it, or remove the secret"
    settings, wrong = None, ""
    try:
        settings = read_settings(host.settings)
    except SettingsInvalid as exc:
        wrong = str(exc)
    # Raised here, and not where the first one was caught: what it came from may hold a value.
    if settings is None:
        raise SettingsInvalid("; ".join(filter(None, (wrong, unhandled))))
    if unhandled:
        raise SettingsInvalid(f"these settings cannot be used: {unhandled}")
    return settings
