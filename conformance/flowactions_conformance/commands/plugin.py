"""``plugin``: checks a plugin's node types, and reports the result."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowactions_conformance.commands import Wrong
from flowactions_conformance.commands.run import paint_for
from flowactions_conformance.kit.outcomes import Status
from flowactions_conformance.kit.plugins.running import PluginFault, check_plugin
from flowactions_conformance.kit.report.terminal import BOLD, GREEN, RED, result_lines


def plugin(options: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        0: every check of every node type has passed. 1: some failed.

    Raises:
        Wrong: the command line is wrong, or the plugin cannot be loaded.
    """
    sys.path.insert(0, str(Path.cwd()))
    settings = _pairs(options.setting, "--setting")
    configs = {name: _config(name, said) for name, said in _pairs(options.config, "--config").items()}
    try:
        results = asyncio.run(check_plugin(options.name, settings=settings, configs=configs))
    except PluginFault as exc:
        raise Wrong(str(exc)) from exc
    paint, failed = paint_for(sys.stdout), [result for result in results if result.status is Status.FAIL]
    lines = [line for result in failed for line in [*result_lines(result, paint), ""]]
    for node_type in dict.fromkeys(result.profile for result in results):
        mine = [result for result in results if result.profile == node_type]
        wrong = sum(result in failed for result in mine)
        said = f"{wrong} of {len(mine)} checks failed" if wrong else f"{len(mine)} checks passed"
        lines.append(f"{node_type}: {paint(said, RED if wrong else GREEN)}")
    verdict = "does not keep the contract" if failed else "keeps the contract, as far as these checks go"
    lines.append(paint(f"The plugin {options.name} {verdict}", BOLD, RED if failed else GREEN))
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if failed else 0


def _pairs(given: Sequence[str], option: str) -> Mapping[str, str]:
    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise Wrong(f"{option} takes NAME=VALUE, not {each!r}")
        found[name] = value
    return found


def _config(name: str, said: str) -> Mapping[str, Any]:
    try:
        text = Path(said[1:]).read_text(encoding="utf-8") if said.startswith("@") else said
        config = json.loads(text)
    except (OSError, ValueError) as exc:
        raise Wrong(f"--config {name}: {exc}") from exc
    if not isinstance(config, dict):
        raise Wrong(f"--config {name} takes a JSON object")
    return config
