"""What the check of a node's config says, as tests compare it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowactions_hookspecs import ConfigProblem
from flowactions_plugin.nodes.webhook import problems
from flowactions_plugin.settings.model import Settings

URL = "http://127.0.0.1:9/hook"


def webhook(**config: Any) -> list[ConfigProblem]:
    """Check a config that is right apart from what is given."""
    return list(problems({"webhookUrl": URL, "webhookBody": "{}", **config}, Settings()))


def told(problems: Sequence[ConfigProblem]) -> list[tuple[Any, ...]]:
    return [(*each.path, each.code, each.severity) for each in problems]
