"""The checks: each with a stable id, the clause that it follows from, and what usually causes a failure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from importlib import import_module
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from flowactions_conformance.kit.outcomes import CheckResult, Status

PROFILES: Final = (
    "core",
    "pacing",
    "loops",
    "editing",
    "logic",
    "tenancy",
    "durability",
    "inbound",
    "scale",
)
GROUPS: Final = (
    "load",
    "edit",
    "http",
    "task",
    "model",
    "eager",
    "halt",
    "auth",
    "methods",
    "pacing",
    "loops",
    "saving",
    "logic",
    "tenancy",
    "durability",
    "inbound",
    "scale",
)
"""The modules of `checks`, in the order in which the checks are reported."""

Run: TypeAlias = Callable[[Any], Awaitable[None]]
Served: TypeAlias = Literal["shared", "restart", "kill", "no"]
"""What a check needs of a host that somebody else has started: only that it serves; that the driver restarts it, or kills it; or
what nobody but the kit can do, for example a start with other settings."""


class Check(NamedTuple):
    """A check.

    Attributes:
        id: stable: ``<GROUP>-<number>``. A number is never used again.
        profile: of `PROFILES`.
        title: what holds in a host that passes, in one sentence.
        clause: the section of the contract page, and of the specification, that it follows from.
        causes: what usually causes a failure, the most frequent first.
        run: the check itself, given a `trial.Trial`; of a check of plugins, a `plugins.tried.Tried`.
        since: the contract's version in which it became required; ``None``: it is provisional, and only warns.
        alone: whether it starts hosts of its own, instead of using the one that all share.
        needs: kinds of items of a world that a host may lack (`HostDriver.lacks`).
        served: what it needs of a host that somebody else has started.
        covers: the groups of kinds (`values`) of which it uses one value each in every run.
    """

    id: str
    profile: str
    title: str
    clause: str
    causes: tuple[str, ...]
    run: Run
    since: str | None = "1.0"
    alone: bool = False
    needs: tuple[str, ...] = ()
    served: Served = "shared"
    covers: tuple[str, ...] = ()

    @property
    def sends_events(self) -> bool:
        """Whether it sends events of the auth provider: the one that asks each of the host's methods does, too."""
        return self.profile == "inbound" or self.id == "TASK-5"

    @property
    def name(self) -> str:
        """The id with what the check is about, for lists of tests: ``AUTH-2-garbage-is-refused``."""
        return f"{self.id}-{self.run.__name__.replace('_', '-')}"

    def result(self, status: Status, **more: Any) -> CheckResult:
        """Return its result, with further fields of `CheckResult`."""
        own = {name: getattr(self, name) for name in ("id", "profile", "title", "clause", "since")}
        return CheckResult(**{**own, "status": status, **more})


_checks: dict[str, Check] = {}


def check(id_: str, **fields: Any) -> Callable[[Run], Run]:
    """Register a check, with the fields of `Check`; the first line of its docstring is its title."""

    def register(run: Run) -> Run:
        if id_ in _checks:
            raise ValueError(f"two checks have the id {id_}")
        title = (run.__doc__ or "").strip().partition("\n")[0]
        _checks[id_] = Check(id_, title=title, run=run, **fields)
        return run

    return register


def all_checks() -> Sequence[Check]:
    """Return every check, in the order of the report."""
    for group in GROUPS:
        import_module(f"flowactions_conformance.kit.checks.{group}")
    order = {name: position for position, name in enumerate(GROUPS)}
    parts = {id_: id_.rpartition("-") for id_ in _checks}
    return [
        _checks[id_]
        for id_ in sorted(parts, key=lambda id_: (order[parts[id_][0].lower()], int(parts[id_][2])))
    ]


def select(ids: Iterable[str]) -> Sequence[Check]:
    """Return the checks with these ids, groups (``EAGER``) or profiles (``pacing``).

    Raises:
        LookupError: there is none of a name; the message lists what there is.
    """
    checks = all_checks()
    wanted: set[str] = set()
    for name in ids:
        found = {
            each.id for each in checks if name in {each.id, each.name, each.id.rpartition("-")[0], each.profile}
        }
        if not found:
            groups = ", ".join(group.upper() for group in GROUPS)
            raise LookupError(
                f"no check, group or profile is named {name!r}; groups are {groups}, "
                f"profiles {', '.join(PROFILES)}, and checks look like {checks[0].id}"
            )
        wanted |= found
    return [each for each in checks if each.id in wanted]
