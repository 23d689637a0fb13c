"""Failures that a host's author accepts for now, each with a reason."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from flowactions_conformance.kit.registry import all_checks

Baseline: TypeAlias = Mapping[str, str]
"""Check id → why its failure is accepted."""


class BaselineInvalid(Exception):
    """It cannot be used; the message says why."""


def accepted(named: Mapping[str, Any]) -> Baseline:
    """Return a baseline whose checks exist, and whose failures have reasons.

    Raises:
        BaselineInvalid: a check does not exist, or a reason is missing.
    """
    unknown = sorted(named.keys() - {check.id for check in all_checks()})
    if unknown:
        raise BaselineInvalid(f"the baseline names checks that do not exist: {', '.join(unknown)}")
    for id_, reason in named.items():
        if not isinstance(reason, str) or not reason.strip():
            raise BaselineInvalid(
                f'the baseline gives no reason for {id_}: write {id_} = "why its failure is accepted"'
            )
    return named


def read_baseline(path: Path) -> Baseline:
    """Read a baseline: TOML, with one reason for each check's id.

    Args:
        path: of the file.

    Raises:
        BaselineInvalid: it cannot be read, a check does not exist, or a reason is missing.
    """
    try:
        return accepted(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as exc:
        raise BaselineInvalid(f"the baseline {path} cannot be read: {exc}") from exc
