"""The folder that makes the probe a plugin like any other: its module and its entry point."""

from __future__ import annotations

from pathlib import Path

from flowactions_conformance.kit.probing.plugin import NAME, Probe


def write_probe(folder: Path, control_url: str, token: str, name: str) -> None:
    """Write the probe's module and entry point into a folder, to be put on ``sys.path``.

    Args:
        folder: new and empty.
        control_url: where the probe reports.
        token: with which it reports and answers.
        name: of the module; unique, because a process may run several sessions one after the other.
    """
    module = f"from {Probe.__module__} import Probe\n\nplugin = Probe({control_url!r}, {token!r})\n"
    (folder / f"{name}.py").write_text(module, encoding="utf-8")
    info = folder / f"{name}-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[flowactions]\n{NAME} = {name}:plugin\n", encoding="utf-8")
