"""The conformance kit's probe as an installed plugin, for hosts that somebody else starts.

Its entry point names ``plugin``. In an environment that `serve-env` has not printed, that is ``None``, which is no plugin, and
nothing but this module is imported.
"""

from __future__ import annotations

import os

PREFIX = "FLOWACTIONS_CONFORMANCE_"
"""Of variables that are for the kit, and no settings."""
PROBE = f"{PREFIX}PROBE"
"""Where the probe reports. Without it there is no probe."""
PROBE_TOKEN = f"{PREFIX}TOKEN"
"""With which the probe reports and answers."""
DATABASE = f"{PREFIX}DATABASE_URL"
"""Where the host may keep its own tables, as `Env.database_url`."""


def __getattr__(name: str) -> object:
    """Return the probe when the environment asks for it.

    Raises:
        PluginInvalid: the environment is one of production, or holds no token.
    """
    if name != "plugin":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not os.environ.get(PROBE):
        return None
    from flowactions_conformance.kit.probing.installed import installed_probe  # noqa: PLC0415

    return installed_probe(os.environ)
