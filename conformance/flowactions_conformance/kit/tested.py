"""What a run has tested: distributions, interpreter, platform and database, each with its version."""

from __future__ import annotations

import functools
import platform
import sys
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

from flowactions_conformance.kit.outcomes import Tested

DISTRIBUTION = "flowactions-plugin"


def tested(factory: str, database: str) -> Tested:
    """Return what a run tests.

    Args:
        factory: ``package.module:attribute``.
        database: its name and version.
    """
    return Tested(host=_host(factory.partition(":")[0]), database=database, **running_on())


def running_on() -> dict[str, str]:
    """Return the plugin, the interpreter and the platform of this process, by the names of `Tested`."""
    return {
        "plugin": f"{DISTRIBUTION} {metadata.version(DISTRIBUTION)}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def _host(module: str) -> str:
    """Return the distribution that a module is of, installed as files or in place; empty, if it is of none."""
    return _distribution(module.partition(".")[0], getattr(sys.modules.get(module), "__file__", None))


@functools.cache  # looks at each file of each distribution
def _distribution(top: str, file: str | None) -> str:
    names = metadata.packages_distributions().get(top, [])
    found = [metadata.distribution(name) for name in names] or [
        each for each in metadata.distributions() if file is not None and _holds(each, Path(file))
    ]
    return ", ".join(sorted({f"{each.name} {each.version}" for each in found}))


def _holds(distribution: metadata.Distribution, file: Path) -> bool:
    """Return whether a distribution is installed in place, from a folder in which this file is."""
    try:
        said = msgspec.json.decode(distribution.read_text("direct_url.json") or "{}", type=dict[str, object])
        is_editable = bool(msgspec.convert(said.get("dir_info", {}), dict[str, object]).get("editable"))
        folder = Path(unquote(urlsplit(str(said.get("url", ""))).path))
    except (OSError, ValueError):
        return False
    return is_editable and folder in file.resolve().parents
