"""The conformance kit's probe as an installed plugin, for hosts that somebody else starts.

Its entry point names ``plugin``. In an environment that `serve-env` has not written, that is ``None``, which is no plugin, and
nothing but this module and the names of variables is imported.
"""

from __future__ import annotations

import os

from flowactions_conformance.variables import PROBE


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
