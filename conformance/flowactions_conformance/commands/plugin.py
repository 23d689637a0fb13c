"""``plugin``: checks a plugin's node types, and reports the result."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowactions_conformance.kit.outcomes import CheckResult, Status
from flowactions_conformance.kit.plugins.running import PluginFault, check_plugin
from flowactions_conformance.kit.report.terminal import BOLD, GREEN, RED, Paint, printable, result_lines


def plugin(options: argparse.Namespace) -> int:
    """Run the command.

    Returns:
        0: every check of every node type has passed. 1: some failed. 2: the command line is wrong, or the plugin cannot be
        loaded.
    """
    sys.path.insert(0, str(Path.cwd()))
    try:
        settings = _pairs(options.setting, "--setting")
        configs = {name: _config(name, said) for name, said in _pairs(options.config, "--config").items()}
        results = asyncio.run(check_plugin(options.name, settings=settings, configs=configs))
    except PluginFault as exc:
        sys.stderr.write(f"flowactions_conformance: {printable(str(exc))}\n")
        return 2
    out = sys.stdout
    paint = Paint(colours=out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb")
    out.write("\n".join(_lines(options.name, results, paint)) + "\n")
    return 1 if any(result.status is Status.FAIL for result in results) else 0


def _lines(name: str, results: Sequence[CheckResult], paint: Paint) -> list[str]:
    failed = [result for result in results if result.status is Status.FAIL]
    lines = [line for result in failed for line in [*result_lines(result, paint), ""]]
    for node_type in dict.fromkeys(result.profile for result in results):
        mine = [result for result in results if result.profile == node_type]
        wrong = sum(result in failed for result in mine)
        said = f"{wrong} of {len(mine)} checks failed" if wrong else f"{len(mine)} checks passed"
        lines.append(f"{node_type}: {paint(said, RED if wrong else GREEN)}")
    verdict = "does not keep the contract" if failed else "keeps the contract, as far as these checks go"
    lines.append(paint(f"The plugin {name} {verdict}", BOLD, RED if failed else GREEN))
    return lines


def _pairs(given: Sequence[str], option: str) -> Mapping[str, str]:
    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise PluginFault(f"{option} takes NAME=VALUE, not {each!r}")
        found[name] = value
    return found


def _config(name: str, said: str) -> Mapping[str, Any]:
    try:
        text = Path(said[1:]).read_text(encoding="utf-8") if said.startswith("@") else said
        config = json.loads(text)
    except (OSError, ValueError) as exc:
        raise PluginFault(f"--config {name}: {exc}") from exc
    if not isinstance(config, dict):
        raise PluginFault(f"--config {name} takes a JSON object")
    return config
