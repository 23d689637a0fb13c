"""The name that hosts and plugins share, and the two decorators made from it."""

from __future__ import annotations

from typing import Final

import pluggy

PROJECT: Final = "flowactions"
"""Both the pluggy project name and the entry-point group."""

hookspec: Final = pluggy.HookspecMarker(PROJECT)
hookimpl: Final = pluggy.HookimplMarker(PROJECT)
