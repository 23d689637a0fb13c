"""Has the wheel hold the examples that ``init`` copies; in an editable install, it finds them in the clone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Examples(BuildHookInterface):
    """Not by ``force-include``: an editable install would get a folder that hides the package in the clone."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the folders of examples to a wheel."""
        if version == "standard":
            for folder in Path(self.root, "docs", "examples").iterdir():
                if folder.is_dir():
                    build_data["force_include"][str(folder)] = f"flowactions_conformance/examples/{folder.name}"
