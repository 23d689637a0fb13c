"""One line in a test file: ``TestHost = conformance_suite(make_host)``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from flowactions_conformance.kit.baseline import accepted, refuse_unknown
from flowactions_conformance.kit.in_pytest.items import TOLD, Told, conclude, not_started, warn_through
from flowactions_conformance.kit.in_pytest.threaded import KitThread
from flowactions_conformance.kit.outcomes import DriverFault
from flowactions_conformance.kit.registry import Check, all_checks, select
from flowactions_conformance.kit.report.terminal import printable
from flowactions_conformance.kit.session import Mode
from flowactions_conformance.kit.under_test import Factory


def conformance_suite(
    make_host: Factory | str,
    *,
    checks: Iterable[str] = (),
    child: bool = False,
    database: str | None = None,
    baseline: Mapping[str, Any] | None = None,
    strict: bool = False,
) -> type:
    """Make a class of tests, one for each check.

    Args:
        make_host: the factory, or its name as ``package.module:make_host``.
        checks: ids, groups or profiles; none: all.
        child: whether every host runs as a child process.
        database: the URL of a PostgreSQL whose user may create databases; ``None``: SQLite.
        baseline: check id → why its failure is accepted: a reason, or a dict of what a table of the file may have.
        strict: whether a should counts as a must.

    Raises:
        BaselineInvalid: a reason is missing, or a field is wrong.
        LookupError: there is no check of a name.
    """
    chosen = list(checks)
    selected: Sequence[Check] = select(chosen) if chosen else all_checks()
    named = accepted(baseline or {})
    refuse_unknown(named)
    mode: Mode = "child" if child else "in-process"
    kit = KitThread(make_host, mode=mode, server=database, baseline=named, strict=strict)
    members: dict[str, Any] = {"__test__": True, "__doc__": "The checks of the flowactions conformance kit."}
    for check in selected:
        members[_name(check)] = _test(kit, check, selected)
    return type("Conformance", (), members)


conformance_suite.__test__ = False  # type: ignore[attr-defined]  # whatever a project's patterns are


def _name(check: Check) -> str:
    return f"test_{check.name.replace('-', '_')}"


def _test(kit: KitThread, check: Check, suite: Sequence[Check]) -> Callable[..., None]:
    def test(_: object, request: pytest.FixtureRequest) -> None:
        alone = hasattr(request.config, "workerinput")  # of xdist, where other processes run the others
        names = {
            item.name
            for item in request.session.items
            if item.parent is request.node.parent or item is request.node
        }
        if not request.config.pluginmanager.has_plugin(TOLD):
            request.config.pluginmanager.register(Told(), TOLD)
        # A project's filters must not reach the host's threads.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                if not kit.has(check):
                    kit.open()
            except DriverFault as exc:
                raise not_started(kit, check, printable(str(exc))) from None
            together = [check] if alone else [each for each in suite if _name(each) in names]
            kit.start(together)
            for each in together:
                kit.result(each)
            if alone:
                request.config.add_cleanup(kit.close)
            else:
                kit.close()
        conclude(kit.result(check), kit, warn_through(request.config, request.node.nodeid))

    test.__name__ = test.__qualname__ = _name(check)
    test.__doc__ = check.title
    test.__test__ = True  # type: ignore[attr-defined]
    return test
