"""What a host must pass for a version of the contract: a frozen list, so that no upgrade makes a passing host fail.

A check that is written after a version was released has ``since=None``: it warns until the next version. Run
``python -m flowactions_conformance.kit.requirements --write`` when the next version is made; a test compares.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, Final

from flowactions_conformance.kit.registry import all_checks
from flowactions_conformance.kit.runner import CONTRACT

FILE: Final = Path(__file__).parent / "requirements.json"
COMMAND: Final = "python -m flowactions_conformance.kit.requirements --write"


def required_now() -> dict[str, Any]:
    """Return what the checks require of a host: version that required them first → profile → their ids."""
    required: dict[str, dict[str, list[str]]] = {}
    for check in all_checks():
        if check.since is not None:
            required.setdefault(check.since, {}).setdefault(check.profile, []).append(check.id)
    return {"contract": CONTRACT, "required": required}


def frozen() -> dict[str, Any]:
    """Return what the file says."""
    found: dict[str, Any] = json.loads(FILE.read_bytes())
    return found


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        FILE.write_text(json.dumps(required_now(), indent=2) + "\n", encoding="utf-8")
    sys.exit(required_now() != frozen())
