"""The table of log events, read from the calls in the code: ``python -m tests.docs.log_events`` prints it.

The site has it below its page on them.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGES: Final = ("flowactions_plugin", "hookspecs/flowactions_hookspecs")
LEVELS: Final = {
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
    "exception": "error",
    "critical": "critical",
}


class LogCall(NamedTuple):
    """A call that logs.

    Attributes:
        place: file and line.
        event: the name in its ``extra``; empty where there is none.
        level: of the record.
        logger: its name, as far as the module says it.
        text: the message, before its arguments are filled in.
    """

    place: str
    event: str
    level: str
    logger: str
    text: str


def calls() -> Iterator[LogCall]:
    """Finds every call of a module's logger."""
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            tree = ast.parse(path.read_text())
            logger = _logger(tree)
            for node in ast.walk(tree):
                if isinstance(node, ast.Call) and _is_log(node.func):
                    assert isinstance(node.func, ast.Attribute)
                    text = (
                        node.args[0].value
                        if isinstance(node.args[0], ast.Constant)
                        else ast.unparse(node.args[0])
                    )
                    place = f"{path.relative_to(ROOT)}:{node.lineno}"
                    yield LogCall(place, _event(node), LEVELS[node.func.attr], logger, str(text))


def _is_log(function: ast.expr) -> bool:
    if not isinstance(function, ast.Attribute) or function.attr not in LEVELS:
        return False
    owner = function.value
    return (owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")) in {"log", "_log"}


def _event(call: ast.Call) -> str:
    for keyword in call.keywords:
        if keyword.arg == "extra" and isinstance(keyword.value, ast.Dict):
            for name, value in zip(keyword.value.keys, keyword.value.values, strict=True):
                if isinstance(name, ast.Constant) and name.value == "event" and isinstance(value, ast.Constant):
                    return str(value.value)
    return ""


def _logger(tree: ast.Module) -> str:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "logging.getLogger":
            name = node.args[0]
            return str(name.value) if isinstance(name, ast.Constant) else "of the route"
    return ""


def render() -> str:
    """Make the table."""
    rows = {(call.event, call.level, call.logger, call.text) for call in calls()}
    lines = ["| event | level | logger | line |", "|---|---|---|---|"]
    for event, level, logger, text in sorted(rows):
        shown = text.replace("|", "\\|") if text not in {"%s", "what"} else "(the error)"
        lines.append(f"| `{event}` | {level} | `{logger}` | {shown} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(render())
