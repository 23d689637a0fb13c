"""Failures that a host's author accepts for now, each with a reason."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class BaselineInvalid(Exception):
    """The file cannot be used; the message says why."""


def read_baseline(path: Path) -> Mapping[str, str]:
    """Read a baseline: TOML, or JSON when the file is named so, with one reason for each check's id.

    Args:
        path: of the file.

    Returns:
        Check id → why its failure is accepted.

    Raises:
        BaselineInvalid: it cannot be read, or a reason is missing.
    """
    try:
        text = path.read_text(encoding="utf-8")
        found: Any = (
            json.loads(text, object_pairs_hook=_once) if path.suffix == ".json" else tomllib.loads(text)
        )
    except (OSError, ValueError) as exc:
        raise BaselineInvalid(f"the baseline {path} cannot be read: {exc}") from exc
    if not isinstance(found, dict):
        raise BaselineInvalid(f'the baseline {path} must map check ids to reasons: EAGER-1 = "why"')
    for id_, reason in found.items():
        if not isinstance(reason, str) or not reason.strip():
            raise BaselineInvalid(
                f"the baseline {path} gives no reason for {id_}: say why its failure is accepted"
            )
    return found


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a check is named twice")
    return found
