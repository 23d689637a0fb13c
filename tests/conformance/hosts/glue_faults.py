"""Hosts with a fault in an engine's glue. Each fault is a change of a module's text, made before the module is imported."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, Final, NamedTuple

from flowactions_conformance import Env

PREFLIGHT: Final = "PREFLIGHT"
"""Stands for the start of a run: a host whose first `next` fails is an error, and the kit runs no check."""


class Fault(NamedTuple):
    """What is wrong.

    Args:
        module: where.
        right: text of it.
        wrong: what stands there instead.
        found_by: a check that fails, or `PREFLIGHT`.
    """

    module: str
    right: str
    wrong: str
    found_by: str


def host_with_a_fault(
    env: Env, faults: Mapping[str, Fault], modules: Sequence[str], names: Mapping[str, Any]
) -> AbstractAsyncContextManager[Any]:
    """Make the host with the fault that the variable ``FAULT`` names.

    Args:
        env: of the host.
        faults: by name.
        modules: those that a fault may change, in the order in which they import each other; the last one makes the host.
        names: what the text of a fault uses beyond what its module has.
    """
    fault = faults[os.environ["FAULT"]]
    if fault.module not in sys.modules:
        for name in modules:
            _load(name, fault, names)
    host: Any = sys.modules[modules[-1]]
    made: AbstractAsyncContextManager[Any] = host.make_host(env)
    return made


def list_faults(faults: Mapping[str, Fault]) -> None:
    """Print the checks that find faults, as JSON: name → check."""
    sys.stdout.write(json.dumps({name: fault.found_by for name, fault in faults.items()}))


def _load(name: str, fault: Fault, names: Mapping[str, Any]) -> None:
    spec: ModuleSpec | None = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    text = Path(spec.origin).read_text("utf-8")
    if name == fault.module:
        assert fault.right in text, f"{fault.right!r} does not stand in {name}"
        text = text.replace(fault.right, fault.wrong)
    module = sys.modules[name] = ModuleType(name)
    module.__file__ = spec.origin
    module.__dict__.update(names)
    exec(compile(text, spec.origin, "exec"), module.__dict__)  # noqa: S102  the text is this repository's
