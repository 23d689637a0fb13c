"""What the check of a node's config says, as tests compare it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flowactions_hookspecs import ConfigProblem, Node
from flowactions_plugin.nodes.webhook import Reading
from flowactions_plugin.settings.model import Settings

URL = "http://127.0.0.1:9/hook"


def webhook(settings: Settings = Settings(), /, **config: Any) -> list[ConfigProblem]:  # noqa: B008  immutable
    """Check a config that is right apart from what is given."""
    node = Node(id="n1", type="webhook", config={"webhookUrl": URL, "webhookBody": "{}", **config})
    return list(Reading(node, settings).problems())


def told(problems: Sequence[ConfigProblem]) -> list[tuple[Any, ...]]:
    return [(*each.path, each.code, each.severity) for each in problems]
