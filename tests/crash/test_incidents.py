"""Incidents, staged for real: each section of the runbook, found by its commands, and found by the pages alone."""

from __future__ import annotations

import re
import shlex
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.commanding import Ended, command
from tests.crash import staging
from tests.crash.page_host import RUN, Pages
from tests.crash.staging import KEY, Stage, staged
from tests.crash.workers import Field
from tests.docs import log_events
from tests.waiting import until

pytestmark = pytest.mark.ci

RUNBOOK = Path(__file__).parents[2] / "docs" / "how-to" / "incidents.md"
ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
DESTINATION = "https://hooks.customer.example:443"
TO = r"/deliveries\?q=.*destination%3A"
ONE = rf"/deliveries/{ID}"

MOMENT_SECONDS = 5
"""For how long pages are opened again, counted in naps: what never comes takes so long."""

Trail = tuple[tuple[str, str], ...]


class Incident(NamedTuple):
    """An incident of the runbook.

    Attributes:
        stage: makes it.
        database: which it is staged on.
        doctor: what `doctor` says; empty: the first line of the runbook that it prints.
        advised: what the commands print that `doctor` advises.
        overview: what the overview says.
        trail: links to follow from there, each a pattern, with what the page says that it leads to.
        flows_run: whether the host's flows go on meanwhile: what the database refuses them is how the host notices.
    """

    stage: Callable[[Stage], Awaitable[None]]
    database: str
    doctor: str
    advised: str
    overview: str
    trail: Trail = ()
    flows_run: bool = False


INCIDENTS = {
    "A receiver is down": Incident(
        staging.receiver_down,
        "postgresql",
        "warning destination PLACE of organization acme has failed N times in a row since TIME: cannot connect to",
        "it refused the connection",
        "N of the N attempts of the last N minutes have failed",
        ((TO, "cannot connect to PLACE: it refused the connection"), (ONE, "never connected")),
    ),
    "A certificate is not accepted": Incident(
        staging.certificate_refused,
        "sqlite",
        "warning destination PLACE of organization acme has failed N times in a row since TIME: "
        "the TLS certificate of PLACE is not accepted: it has expired",
        "the TLS certificate of PLACE is not accepted: it is for another name",
        "PLACE of organization acme has failed N times in a row since TIME : the TLS certificate of PLACE is not accepted: it",
        ((TO, "the TLS certificate of PLACE is not accepted: it"), (ONE, "never connected")),
    ),
    "A name does not resolve": Incident(
        staging.name_unresolved,
        "sqlite",
        "warning destination PLACE of organization acme has failed N times in a row since TIME: "
        "PLACE has no address now: the name was not found",
        "never connected",
        "PLACE of organization acme has failed N times in a row since TIME : PLACE has no address now: the name was not found",
        ((TO, "PLACE has no address now: the name was not found"), (ONE, "never connected")),
    ),
    "A receiver answers 410": Incident(
        staging.gone,
        "sqlite",
        "warning destination PLACE of organization acme has failed N times in a row since TIME: it answered N",
        "this endpoint was removed",
        "PLACE of organization acme has failed N times in a row since TIME : it answered N",
        ((TO, "dead"), (ONE, "It failed at TIME : it answered N.")),
    ),
    "A flow is wrong": Incident(
        staging.bad_flow,
        "sqlite",
        "warning node node n of flow flow-N of organization acme: N of its last N deliveries have failed: it answered N",
        "no such hook",
        "node n of flow flow-N of organization acme: N of its last N deliveries have failed: it answered N",
        ((r"/deliveries\?q=.*node%3An", "dead"), (ONE, "Flow flow-N Node n")),
    ),
    "A customer is slow": Incident(
        staging.slow_customer,
        "sqlite",
        "warning late the oldest delivery has been due for N min; N of those that are due are for PLACE of organization acme",
        "when it has a slot free for its destination",
        "the oldest delivery has been due for N min; N of those that are due are for PLACE of organization acme",
        (
            (r"\?q=status%3A(due|waiting|pending)", "PLACE"),
            (ONE, "when it has a slot free for its destination"),
        ),
    ),
    "Deliveries wait without an attempt": Incident(
        staging.waits_here,
        "postgresql",
        "failed proxy the egress proxy did not connect: it cannot be reached",
        "the egress proxy did not connect: it cannot be reached",
        "N deliveries wait, without an attempt, since TIME : the egress proxy did not connect: it cannot be reached",
        (
            (r"\?q=[^&]*error%3Awaits", "it cannot be reached"),
            (ONE, "It waits for the egress proxy since TIME"),
        ),
    ),
    "A destination is paused": Incident(
        staging.paused_by_itself,
        "sqlite",
        "",
        "N failures in a row since TIME, the last one: http_Nxx",
        "N destination is paused automatically since TIME : deliveries to it wait.",
        (("/destinations$", "flowactions automatic N failures in a row since TIME, the last one: http_Nxx"),),
    ),
    "The database is away": Incident(
        staging.database_away,
        "postgresql",
        "",
        "",
        "N The database did not answer",
    ),
    "The database takes no writes": Incident(
        staging.no_writes,
        "postgresql",
        "",
        "",
        "unwritable The database takes no writes: it is read-only.",
        flows_run=True,
    ),
    "No worker is alive": Incident(
        staging.no_worker,
        "sqlite",
        "",
        "",
        "rows have been due for N and nothing has been claimed, and no worker is alive.",
    ),
    "A worker is frozen": Incident(
        staging.frozen,
        "postgresql",
        "warning workers N alive, N in flight; WORKER does not answer since TIME",
        "does not answer",
        "does not answer since TIME",
    ),
    "A clock is wrong": Incident(
        staging.wrong_clock,
        "postgresql",
        "",
        "Message timestamp too new",
        "the clock of worker WORKER is N min ahead of the database's: receivers refuse what it signs.",
        ((r"\?q=status%3Adead", "dead"), (ONE, "This attempt began N min after the delivery ended")),
    ),
    "Workers crash": Incident(
        staging.crashing,
        "postgresql",
        "",
        "does not answer",
        "does not answer since TIME",
    ),
    "One delivery ends its workers": Incident(
        staging.ending_workers,
        "sqlite",
        "warning quarantine N workers ended while they sent a delivery to PLACE of organization acme: it is sent alone",
        "workers ended, or did not answer, while they had claimed it",
        "N workers ended while they sent a delivery to PLACE of organization acme: it is sent alone.",
        ((ONE, "workers ended, or did not answer, while they had claimed it"),),
    ),
    "A chat token is revoked": Incident(
        staging.token_revoked,
        "sqlite",
        "",
        "",
        "N chat connection is revoked, or could not send a message within the last day.",
        (("/connections", "Acme TNACME revoked acme token_revoked"),),
    ),
    "A chat channel is archived": Incident(
        staging.channel_archived,
        "sqlite",
        "",
        "",
        "N chat connection is revoked, or could not send a message within the last day.",
        (("/connections", "is_archived N ago flow flow-N, node n"),),
    ),
    "An encryption key is lost": Incident(
        staging.key_lost,
        "sqlite",
        "",
        "",
        "N chat connection is revoked, or could not send a message within the last day.",
        (("/connections", "unusable acme token_unreadable"),),
    ),
    "A signing secret is wrong": Incident(
        staging.secret_wrong,
        "sqlite",
        "warning destination PLACE of organization acme has failed N times in a row since TIME: it answered N",
        "signature does not match",
        "PLACE of organization acme has failed N times in a row since TIME : it answered N",
        ((TO, "retrying flow-N · n acme PLACE /hook N/N N TIME"), (ONE, "signature does not match")),
    ),
    "Events of a provider are refused": Incident(
        staging.events_refused,
        "sqlite",
        "",
        "",
        "no event of the auth provider was processed within the last hour; N requests were refused since TIME : the signature does not",
        ((r"/inbound", "the signature does not fit the one secret of AUTH_WEBHOOK_SIGNING_SECRET"),),
    ),
    "Migrations are behind": Incident(staging.migrations_behind, "postgresql", "", "created the tables", ""),
    "The disk is full": Incident(
        staging.disk_full,
        "sqlite",
        "",
        "",
        "unwritable The database takes no writes: its disk is full.",
        flows_run=True,
    ),
}
"""By its section. A host does not start while migrations are behind: no page shows that."""


CHANGING = ("outbox retry", "destinations pause", "destinations resume")
"""Commands of the advice that a person decides about."""


class Shown(NamedTuple):
    """A command of the runbook, and the lines that it shows of its output."""

    command: str
    lines: list[str]


def shown(incident: str) -> list[Shown]:
    """Give the commands of a section."""
    section = RUNBOOK.read_text().partition(f"\n## {incident}\n")[2].partition("\n## ")[0]
    found: list[Shown] = []
    for block in re.findall(r"```console\n(.*?)```", section, re.DOTALL):
        first, *lines = block.splitlines()
        found.append(
            Shown(first.partition("flowactions ")[2], [line for line in lines if line not in {"", "…"}])
        )
    return found


def alike(text: str) -> str:
    """Put the same in place of what differs from one run to the next: ids, places, times and numbers."""
    # The machine decides how long the database takes to answer.
    text = re.sub(
        r"^warning  database     (\w+ answers in)", r"ok       database     \1", text, flags=re.MULTILINE
    )
    text = re.sub(ID, "ID", text)
    text = re.sub(
        r"https?://[^\s:/]+:\d+|\b(hooks\.customer\.(example|invalid)|localhost|127\.0\.0\.1)(:\d+)?\b",
        "PLACE",
        text,
    )
    text = re.sub(rf"\b(app1|{re.escape(socket.gethostname())}):\d+", "WORKER", text)
    text = re.sub(rf"\b(app1|{re.escape(socket.gethostname())})\b", "MACHINE", text)
    text = re.sub(r"\d{4}-\d\d-\d\d[T ][\d:.]+(Z| UTC)", "TIME", text)
    return " ".join(re.sub(r"\d+(\.\d+)?( ms| s\b)?", "N", text).split())


def compare(one: Shown, output: str) -> None:
    """Check that a command printed each line that the runbook shows, apart from what differs between runs."""
    printed = [alike(line) for line in output.splitlines()]
    for line in one.lines:
        assert any(each.startswith(alike(line)) for each in printed), f"{line}\nis not in\n{output}"


async def run(stage: Stage, *arguments: str, host: str = "", **settings: str) -> Ended:
    """Run a command with the settings of the stage."""
    more = ("--host", host) if host else ()
    return await command(*arguments, *more, cwd=stage.directory, **{**stage.field.settings, **settings})


async def follow(stage: Stage, number: int, one: Shown) -> str:
    """Run a command of the runbook with the id and the place of this run in place of its own, and compare."""
    given = one.command.replace(f"{DESTINATION}/hook", stage.url).replace("before:5m", "before:1s")
    arguments = shlex.split(re.sub(ID, stage.row, given))

    async def matches() -> str:
        """The state of a queue that moves may be another for a moment."""
        ended = await run(stage, *arguments, **stage.settings.get(number, {}))
        try:
            compare(one, ended.out)
        except AssertionError:
            if not stage.moves:
                raise
            return ""
        return ended.out

    return str(await until(matches))


def advised(output: str) -> Iterator[list[str]]:
    """Give the commands of `doctor`'s advice that only read, as they stand there."""
    for line in output.splitlines():
        if line.strip().startswith("-> "):
            for found in re.findall(r"'?flowactions ([a-z](?: '[^']*'|[^,;'])*)", line):
                if not found.startswith(CHANGING):
                    yield shlex.split(found)


async def carry_out(stage: Stage, output: str) -> str:
    """Run the commands that `doctor` advises; with "then outbox show of one", show one. Give what they print."""
    said = ""
    for arguments in {tuple(each): each for each in advised(output)}.values():
        if arguments[0] == "worker":  # which goes on until it is stopped
            continue
        ended = await run(stage, *arguments)
        # These end with 1 while something is wrong.
        assert ended.code == 0 or (arguments in (["status"], ["doctor"]) and ended.code == 1), (
            arguments,
            ended,
        )
        said += ended.out + ended.err
        if arguments[:2] == ["outbox", "list"]:
            (one,) = re.findall(ID, ended.out)[:1]
            said += (await run(stage, "outbox", "show", one)).out
    return said


@pytest.fixture
async def stage(field: Field, tmp_path: Path) -> AsyncIterator[Stage]:
    field.settings.update(FLOWACTIONS_DELIVERY="continuous", FLOWACTIONS_ENCRYPTION_KEYS=KEY)
    async with staged(field, tmp_path) as made:
        yield made


@pytest.mark.parametrize(
    ("heading", "database_url"),
    [(heading, each.database) for heading, each in INCIDENTS.items()],
    indirect=["database_url"],
    ids=[heading.replace(" ", "_") for heading in INCIDENTS],
)
async def test_each_incident_is_found(heading: str, stage: Stage) -> None:
    """By `doctor`, the commands that it advises and those of the runbook; and by the overview and what it leads to."""
    incident = INCIDENTS[heading]
    await incident.stage(stage)
    outputs = {}
    for number, one in enumerate(shown(heading)):
        if number not in stage.later:
            outputs[one.command] = await follow(stage, number, one)
    said = outputs.get("doctor") or (await run(stage, "doctor", "--no-chat")).out
    assert incident.doctor in alike(said), said
    if incident.overview:
        await is_seen(incident, await stage.pages())
    carried = await carry_out(stage, said)
    assert incident.advised in alike(carried), carried


async def is_seen(incident: Incident, pages: Pages) -> None:
    """Go from the overview along the trail."""

    async def seen() -> bool:
        missing.clear()
        if incident.flows_run:
            await pages.get(RUN)
        page = await pages.open()
        for said, link in zip(wanted, [*links, None], strict=True):
            if said not in alike(page.text):
                missing.append(f"{said}\nis not in\n{alike(page.text)}")
            if link is not None:
                found = [each for each in page.links if re.search(link, each)]
                if not found:
                    missing.append(f"{link}\nis not in\n{page.links}")
                    break
                page = await pages.open(found[0])
        return not missing

    missing: list[str] = []
    wanted = [incident.overview, *(said for _, said in incident.trail)]
    links = [link for link, _ in incident.trail]
    try:
        await until(seen, MOMENT_SECONDS)  # while deliveries go on, a page may say something else at first
    except AssertionError:
        raise AssertionError(missing[0]) from None


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_a_delivery_that_ends_its_workers_is_dead_in_the_end(stage: Stage) -> None:
    """After three of them while it was sent alone; the commands and the pages name it."""
    heading = "One delivery ends its workers"
    await staging.ending_workers(stage)
    await stage.field.run("UPDATE flowactions_outbox SET quarantine_rounds = 3")
    await stage.field.start(FLOWACTIONS_TEST_TIMING=staging.SOON)
    await until(lambda: stage.ids("dead"))
    await follow(stage, 2, shown(heading)[2])
    said = "its worker ended each of the N times that it was sent alone"
    trail = ((r"\?q=status%3Adead", said), (ONE, said))
    await is_seen(INCIDENTS[heading]._replace(overview="Dead N", trail=trail), await stage.pages())
    assert len(stage.field.receiver.requests) == 1


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
async def test_an_old_key_behind_the_new_one_opens_the_tokens(stage: Stage) -> None:
    """As the runbook says, and `doctor` after it; then `reseal`, which it advises."""
    await staging.key_lost(stage)
    stage.field.settings["FLOWACTIONS_ENCRYPTION_KEYS"] = f"{staging.OTHER_KEY},{KEY}"
    said = (await run(stage, "doctor")).out
    assert "1 under older ones" in said
    assert "failed" not in said
    await carry_out(stage, said)
    stage.field.settings["FLOWACTIONS_ENCRYPTION_KEYS"] = staging.OTHER_KEY
    assert (
        "ok       keys         1 token under the newest key, 0 under older ones"
        in (await run(stage, "doctor")).out
    )


def test_each_section_is_staged() -> None:
    """The runbook and the table have the same incidents in the same order, and the page begins with a way to each."""
    text = RUNBOOK.read_text()
    headings = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert headings == list(INCIDENTS)
    ways = set(re.findall(r"\]\(#([a-z0-9-]+)\)", text.partition("\n## ")[0]))
    assert ways == {heading.lower().replace(" ", "-") for heading in headings}


def test_alerts_and_log_events_of_the_runbook_exist() -> None:
    """It names none that nobody sees."""
    text = RUNBOOK.read_text()
    known = (RUNBOOK.parents[1] / "observability" / "alerts.yaml").read_text()
    assert all(f"alert: {name}\n" in known for name in re.findall(r"`(Flowactions\w+)`", text))
    events = log_events.render()
    named = re.findall(r"`([a-z_]+\.[a-z_]+)`", text)
    assert len(named) > 5
    assert [name for name in named if f"| `{name}` |" not in events] == []
