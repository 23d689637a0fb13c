"""The probe in a host that somebody else has started: when it may be there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from flowactions_conformance.kit.probing.plugin import Probe
from flowactions_conformance.variables import PROBE, PROBE_TOKEN
from flowactions_hookspecs import FlowActions, Host, NodeType, PluginInvalid, hookimpl

INSTALLED: Final = "flowactions-conformance"
"""The name of the entry point."""
ENVIRONMENT: Final = "FLOWACTIONS_ENVIRONMENT"


class InstalledProbe(Probe):
    """A probe that refuses hosts of production."""

    @hookimpl(tryfirst=True)
    def flowactions_node_types(self, host: Host, actions: FlowActions) -> Sequence[NodeType]:
        """See `Probe.flowactions_node_types`."""
        _refuse_production(host.settings)
        return super().flowactions_node_types(host, actions)


def installed_probe(environ: Mapping[str, str]) -> Probe:
    """Return the probe that an environment asks for.

    Raises:
        PluginInvalid: the environment is one of production, or holds no token.
    """
    _refuse_production({ENVIRONMENT: "development", **environ})
    token = environ.get(PROBE_TOKEN, "")
    if not token:
        raise PluginInvalid(
            f"{PROBE} is set, and {PROBE_TOKEN} is not: set all that serve-env has written, or remove {PROBE}"
        )
    return InstalledProbe(environ[PROBE], token, INSTALLED)


def _refuse_production(settings: Mapping[str, str]) -> None:
    if str(settings.get(ENVIRONMENT, "")).strip() != "development":
        raise PluginInvalid(
            f"{PROBE} is set, and {ENVIRONMENT} is not development: the conformance kit's probe reports what the host does. "
            f"Remove {PROBE}, or give the host the settings that serve-env has written"
        )
