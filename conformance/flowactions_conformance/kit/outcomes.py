"""What comes of a check: pure data, written into the report."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from msgspec import field

from flowactions_conformance.kit.under_test import Wire

MAX_SHOWN_CHARACTERS = 4_000


class Status(StrEnum):
    """How a check ended."""

    PASS = "pass"  # noqa: S105  not a password
    FAIL = "fail"
    WARN = "warn"
    """It failed, and is required by a later contract only."""
    NOT_CLAIMED = "not_claimed"
    """The host does not claim the check's profile; never counted as a success."""
    NOT_TESTABLE = "not_testable"
    """The host's driver does not let the kit look; counts as a failure."""
    NOT_TRIED = "not_tried"
    """The check needs what an optional method of the driver does, or what a served host cannot give; no failure, and never
    part of what is proved."""
    ERROR = "error"
    """The driver or the kit is at fault: nothing is known about the host."""


class Moment(Wire, frozen=True):
    """Something that happened during a check.

    Args:
        at: seconds since the check began.
        source: ``kit``, ``host``, ``probe``, ``receiver`` or ``provider``.
        text: what happened, in one line.
    """

    at: float
    source: str
    text: str


class Finding(Wire, frozen=True):
    """Why a check did not pass.

    Args:
        message: what is wrong, in one sentence that names host, step or node.
        expected: what the contract asks for.
        actual: what was observed.
        causes: what usually causes this, the most frequent first.
        logged: what the host printed and logged during the check, where it has answered a server error.
    """

    message: str
    expected: str = ""
    actual: str = ""
    causes: tuple[str, ...] = ()
    logged: tuple[str, ...] = ()


class CheckResult(Wire, frozen=True):
    """One check and its result.

    Args:
        id: of the check, for example ``EAGER-1``; stable.
        clause: what it follows from: a section of the contract page and of the specification.
        since: the version of the contract in which the check is required; ``None`` while it is provisional.
        rerun: the command line that runs this check alone.
        seconds: how long it took.
    """

    id: str
    profile: str
    title: str
    clause: str
    since: str | None
    status: Status
    finding: Finding | None = None
    timeline: tuple[Moment, ...] = ()
    seconds: float = 0.0
    rerun: str = ""


class Report(Wire, frozen=True):
    """What came of a run.

    Args:
        host: the factory, for example ``mypkg.testing:make_host``.
        contract: the version of the contract.
        mode: ``in-process``, ``child`` or ``served``.
        claims: profiles that the host claims, with ``core``; none, if no check was reached.
        error: what ended the run before any check, ``None`` otherwise.
        selected: whether only some checks were run; then the host is not proved.
        tested: host, plugin, Python and database, each with its version.
        lacks: kinds of items that the host does not have, although it claims ``loops``.
        checks: how many were to be run.
        interrupted: whether Ctrl+C or SIGTERM ended the run before all of them had ended.
        running: the ids of those that ran then.
        seed: of the values that checks drew; ``--seed`` repeats them.
    """

    host: str
    contract: str
    kit: str
    mode: str
    database: str
    started_at: str
    seconds: float
    claims: tuple[str, ...]
    results: tuple[CheckResult, ...]
    error: Finding | None = None
    output: str = ""
    selected: bool = False
    tested: dict[str, str] = field(default_factory=dict)
    lacks: tuple[str, ...] = ()
    checks: int = 0
    interrupted: bool = False
    running: tuple[str, ...] = ()
    seed: int = 0

    @property
    def exit_status(self) -> int:
        """0: passed; 1: the host fails, or no check ran; 2: the driver, or the kit, is at fault; 130: interrupted."""
        seen = {result.status for result in self.results}
        if self.interrupted:
            return 130
        if self.error is not None or Status.ERROR in seen:
            return 2
        if seen & {Status.FAIL, Status.NOT_TESTABLE}:
            return 1
        return 1 if seen <= {Status.NOT_CLAIMED, Status.NOT_TRIED} else 0

    @property
    def passed(self) -> bool:
        """Whether every check of a claimed profile passed, at least one ran, and nothing was an error."""
        return self.exit_status == 0


class CheckFailed(Exception):
    """The host does not do what the check asks."""

    def __init__(
        self, message: str, *, expected: object = "", actual: object = "", causes: Sequence[str] = ()
    ) -> None:
        super().__init__(message)
        self.finding = Finding(
            message=message, expected=shown(expected), actual=shown(actual), causes=tuple(causes)
        )


class CommonCause(CheckFailed):
    """What keeps many checks from being tried: the first that meets it fails, and the others name that one."""


class NotTestable(Exception):
    """The host's driver does not let the kit look; the message says what is missing."""


class NotTried(Exception):
    """The check needs what the driver may leave out; the message says what. The host is neither blamed nor proved by it."""


class NothingKnown(Exception):
    """The machine, or what the kit itself gave, failed; the message says which. Nothing is known of the host."""


class DriverFault(Exception):
    """The host's driver, or the kit, did not do its part; the message says which method and why."""


def shown(value: object) -> str:
    """Return a value as text for the report, cut when it is long."""
    text = value if isinstance(value, str) else repr(value)
    return (
        text
        if len(text) <= MAX_SHOWN_CHARACTERS
        else f"{text[:MAX_SHOWN_CHARACTERS]}… ({len(text)} characters)"
    )
