"""The checks: each with a stable id, the clause that it follows from, and what usually causes a failure."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from flowactions_conformance.kit.trial import Trial

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
    "eager",
    "halt",
    "auth",
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
        since: the contract's version in which it became required; ``None``: it is provisional, and only warns.
        causes: what usually causes a failure, the most frequent first.
        run: the check itself.
        alone: whether it starts hosts of its own, instead of using the one that all share.
        needs: kinds of items of a world that a host may lack (`HostDriver.lacks`).
        served: what it needs of a host that somebody else has started.
        covers: the groups of kinds (`values`) of which it uses one value each in every run.
    """

    id: str
    profile: str
    title: str
    clause: str
    since: str | None
    causes: tuple[str, ...]
    run: Callable[[Trial], Awaitable[None]]
    alone: bool = False
    needs: frozenset[str] = frozenset()
    served: Served = "shared"
    covers: frozenset[str] = frozenset()

    @property
    def name(self) -> str:
        """The id with what the check is about, for lists of tests: ``AUTH-2-garbage-is-refused``."""
        return f"{self.id}-{self.run.__name__.replace('_', '-')}"


_checks: dict[str, Check] = {}


def check(
    id_: str,
    *,
    profile: str,
    clause: str,
    causes: Sequence[str],
    since: str | None = "1.0",
    alone: bool = False,
    needs: Iterable[str] = (),
    served: Served = "shared",
    covers: Iterable[str] = (),
) -> Callable[[Callable[[Trial], Awaitable[None]]], Callable[[Trial], Awaitable[None]]]:
    """Register a check; the first line of its docstring is its title."""

    def register(run: Callable[[Trial], Awaitable[None]]) -> Callable[[Trial], Awaitable[None]]:
        if id_ in _checks:
            raise ValueError(f"two checks have the id {id_}")
        title = (run.__doc__ or "").strip().partition("\n")[0]
        _checks[id_] = Check(
            id_,
            profile,
            title,
            clause,
            since,
            tuple(causes),
            run,
            alone,
            frozenset(needs),
            served,
            frozenset(covers),
        )
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
