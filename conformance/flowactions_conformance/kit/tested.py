"""What a run has tested: distributions, interpreter, platform and database, each with its version."""

from __future__ import annotations

import functools
import platform
from importlib import metadata
from typing import Final

DISTRIBUTION: Final = "flowactions-plugin"


def running_on() -> dict[str, str]:
    """Return the plugin, and the interpreter with the platform, of this process."""
    return {
        "plugin": f"{DISTRIBUTION} {metadata.version(DISTRIBUTION)}",
        "python": f"{platform.python_implementation()} {platform.python_version()}, "
        f"{platform.system()} {platform.release()} {platform.machine()}",
    }


@functools.cache  # looks at each file of each distribution
def distribution_of(module: str) -> str:
    """Return the distributions that a module is of, with their versions."""
    names = metadata.packages_distributions().get(module.partition(".")[0], [])
    found = ", ".join(sorted({f"{name} {metadata.version(name)}" for name in names}))
    return found or f"{module}, of no distribution"
