"""Failures that a host's author accepts for now, each with a reason."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from flowactions_conformance.kit.outcomes import Report, Status
from flowactions_conformance.kit.registry import all_checks
from flowactions_conformance.kit.under_test import Wire
from flowactions_hookspecs import CONTRACT_VERSION


class BaselineInvalid(Exception):
    """The file cannot be used; the message says why."""


class Accepted(Wire, frozen=True, forbid_unknown_fields=True):
    """An accepted failure.

    Args:
        reason: why it is accepted.
        database: on which alone; ``None``: on both.
        mode: in which alone; ``None``: in each.
        until: the last version of the contract for which it is accepted, for example ``1.0``; later it is stale.
    """

    reason: str
    database: Literal["sqlite", "postgresql"] | None = None
    mode: Literal["in-process", "child", "served"] | None = None
    until: str | None = None

    def __post_init__(self) -> None:
        """Refuse an acceptance that nobody explains."""
        if not self.reason.strip():
            raise ValueError("gives no reason")
        if self.until is not None:
            _version(self.until)

    @property
    def has_expired(self) -> bool:
        """Whether the contract is newer than what it was accepted for."""
        return self.until is not None and _version(self.until) < tuple(CONTRACT_VERSION)

    def holds(self, mode: str, database: str) -> bool:
        """Return whether it is about runs in this mode and on this database."""
        return self.mode in {None, mode} and self.database in {None, database}

    def is_stale(self, report: Report, id_: str) -> bool:
        """Return whether a run has shown that the entry of this check is to be removed."""
        passed = any(result.id == id_ and result.status is Status.PASS for result in report.results)
        return self.has_expired or (passed and self.holds(report.mode, report.database))


Baseline: TypeAlias = Mapping[str, Accepted]
"""Check id → why its failure is accepted."""


def _version(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split("."))
    except ValueError:
        raise ValueError(f'names no version of the contract: until = {text!r}, for example "1.0"') from None


def accepted(named: Mapping[str, Any], origin: str = "the baseline") -> Baseline:
    """Read what a baseline holds.

    Args:
        named: check id → reason, or a table of the fields of `Accepted`.
        origin: for messages.

    Raises:
        BaselineInvalid: a reason is missing, or a field is wrong.
    """
    found = {}
    for id_, entry in named.items():
        try:
            given = entry if isinstance(entry, (dict, Accepted)) else {"reason": entry}
            found[id_] = msgspec.convert(msgspec.to_builtins(given), Accepted)
        except msgspec.ValidationError as exc:
            raise BaselineInvalid(
                f"{origin} {_fault(str(exc))} for {id_}: give the reason why its failure is accepted, as text or in a table. "
                'A table has "reason", and may have "database" ("sqlite", "postgresql"), "mode" ("in-process", "child", "served") '
                'and "until" (a version of the contract)'
            ) from None
    return found


def _fault(said: str) -> str:
    reasons = ("gives no reason", "`$.reason`", "field `reason`")
    return "gives no reason" if any(each in said for each in reasons) else f"is wrong ({said})"


def refuse_unknown(baseline: Iterable[str]) -> None:
    """Refuse a baseline that names checks that do not exist: it would accept nothing.

    Raises:
        LookupError: it does; the message names them.
    """
    unknown = sorted(set(baseline) - {check.id for check in all_checks()})
    if unknown:
        raise LookupError(f"the baseline names checks that do not exist: {', '.join(unknown)}")


def stale_in(baseline: Baseline, report: Report) -> tuple[str, ...]:
    """Return the checks of a baseline which a run has shown to be stale: they pass, or the contract is newer."""
    return tuple(sorted(id_ for id_, entry in baseline.items() if entry.is_stale(report, id_)))


def read_baseline(path: Path) -> Baseline:
    """Read a baseline: TOML, or JSON when the file is named so, with one reason or table for each check's id.

    Args:
        path: of the file.

    Raises:
        BaselineInvalid: it cannot be read, a reason is missing, or a field is wrong.
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
    return accepted(found, f"the baseline {path}")


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a check is named twice")
    return found
