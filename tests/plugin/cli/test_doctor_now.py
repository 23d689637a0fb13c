from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, update

from flowactions_plugin.chat.failures import RECONNECT
from flowactions_plugin.cli import checks as checks_module
from flowactions_plugin.cli.checks import Check, check_chat
from flowactions_plugin.cli.context import CommandContext
from flowactions_plugin.cli.diagnosis import check_deliveries
from flowactions_plugin.cli.outbox import show_status
from flowactions_plugin.egress.attempt import Outcome
from flowactions_plugin.insights.findings import NAMED
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.log_text import plural
from flowactions_plugin.operators.scope import Scope
from flowactions_plugin.queue.claimed import Attempted
from flowactions_plugin.queue.rules import Transition
from flowactions_plugin.settings.model import read_settings
from flowactions_plugin.storage import schema
from flowactions_plugin.storage.database import Database
from flowactions_plugin.storage.schema import QUARANTINE_AFTER
from flowactions_plugin.watch.statistics import Counts
from flowactions_plugin.watch.statistics_store import add_counts
from tests.alerting import SETTINGS
from tests.bulk import failing
from tests.chatting import chat_host
from tests.commanding import command
from tests.plugin.cli.test_doctor import KEY, made, put
from tests.plugin.stored import a_connection, a_worker
from tests.queueing import Queue, claimed
from tests.rings import sampled


async def found(queue: Queue, name: str) -> list[Check]:
    """Give what doctor says on deliveries, of one check."""
    return [each for each in await made(check_deliveries, queue.database) if each.name == name]


async def fails(queue: Queue, place: str, **changes: Any) -> None:
    """Have a destination fail since a second ago, the last time just now."""
    now = int(await queue.database.time() * 1000)
    values = {**failing(0, now), "organization_id": "acme", "destination": place, "last_error": "http_5xx"}
    values |= {"failing_since": now - 1000, "failures_in_row": 20, **changes}
    await queue.run(insert(schema.destinations).values(values))


async def seen(queue: Queue, pid: int, ago: int, machine: str = "h", **changes: Any) -> None:
    """Have a worker that began two seconds before it was last seen, so many seconds ago."""
    at = int(await queue.database.time() * 1000) - ago * 1000
    values = {"name": f"{machine}:{pid}", "host_name": machine, "pid": pid, "started_at": at - 2000}
    await queue.run(insert(schema.workers).values(a_worker(at, **values, **changes)))


async def test_all_destinations_that_fail_now_are_named(queue: Queue) -> None:
    """The latest failure first, and how many more; of an old one only while deliveries wait for it, of a healed one nothing."""
    now = int(await queue.database.time() * 1000)
    old = now - 7_200_000
    await fails(queue, "http://old:1", last_failure_at=old, failing_since=old - 1000)
    await fails(queue, "http://waits:1", last_failure_at=old, failing_since=old - 2000)
    await queue.put(destination="http://waits:1")
    await fails(queue, "http://recovered:1", failing_since=None, failures_in_row=0)
    await fails(queue, "http://few:1", failures_in_row=2)
    for number in range(NAMED):
        await fails(queue, f"http://now{number:02}:1", last_failure_at=now - number)
    checks = await found(queue, "destination")
    assert {each.result for each in checks} == {"warning"}
    assert [each.message.split(" ")[0] for each in checks] == [
        *(f"http://now{number:02}:1" for number in range(NAMED)),
        "1",
    ]
    assert checks[-1].message == "1 more destination fails"
    assert checks[0].message.startswith(
        "http://now00:1 of organization acme has failed 20 times in a row since "
    )
    where = "'organization:acme destination:http://now00:1'"
    assert checks[0].advice == (
        f"see them: flowactions outbox list --where {where}; to pause it: flowactions destinations pause"
        " http://now00:1 --organization acme"
    )
    await queue.run(
        "UPDATE flowactions_destinations SET failing_since = NULL WHERE destination LIKE 'http://now%'"
    )
    assert [each.message.split(" ")[0] for each in await found(queue, "destination")] == ["http://waits:1"]


@pytest.mark.parametrize("failures", [2, 5])
async def test_of_a_destination_the_last_attempts_sentence_is_told(queue: Queue, failures: int) -> None:
    """From three failures in a row on; to a tenant masked."""
    places = {
        "http://nowhere.invalid:80": Outcome(
            0, 1, error="nowhere.invalid has no address now: the name was not found"
        ),
        "http://answers.example:80": Outcome(0, 1, status_code=302),
        "http://odd.example:80": Outcome(0, 1, error="cannot connect to 10.1.2.3: [Errno 111] refused\0\ud800"),
    }
    for place, last in places.items():
        for outcome in [Outcome(0, 1, status_code=500)] + [last] * (failures - 1):
            counts = Counts()
            row = claimed(organization_id="acme", destination=place)
            counts.add(Attempted(row, outcome, Transition("retrying")))
            await add_counts(queue.database, {("acme", place): counts}, queue.database.clock())
    told = {each.message.split(" ")[0]: each.message for each in await found(queue, "destination")}
    insights = Insights(queue.database)
    rows = {each.destination: each for each in (await insights.destinations(Scope(), 10))[0]}
    tenants = {each.destination: each for each in (await insights.destinations(Scope("acme"), 10))[0]}
    assert told.keys() == (places.keys() if failures >= 3 else set())
    assert {each.destination for each in (await insights.overview(Scope())).failing} == set(told)
    for place, words in zip(
        places, ("the name was not found", "it answered 302, a redirect", "10.1.2.3"), strict=True
    ):
        assert words in (rows[place].last_reason or "")
        assert words in told.get(place, words)
    assert "10.1.2.3" not in (tenants["http://odd.example:80"].last_reason or "")
    assert "Errno" not in (tenants["http://odd.example:80"].last_reason or "")
    assert {each.last_error for each in tenants.values()} == {"network", "http_3xx"}


async def test_who_delivers_and_what_is_tested_is_said_as_it_is(database_url: str, tmp_path: Path) -> None:
    """Where hosts deliver nothing, 'flowactions worker' does, and that is not nobody; of no token nothing is counted."""
    async with chat_host(database_url, FLOWACTIONS_ENCRYPTION_KEYS=KEY, FLOWACTIONS_HOST_WORKER="off") as run:
        made = await command("doctor", "--json", cwd=tmp_path, **run.host.settings)
    told = {each["name"]: each for each in reversed(made.document["checks"])}
    assert "by 'flowactions worker', not by the host's processes" in told["settings"]["message"]
    assert (told["chat"]["result"], told["chat"]["message"]) == (
        "skipped",
        "no workspace is connected, so no token was tested",
    )


async def test_workers_that_do_not_answer_are_named(queue: Queue) -> None:
    """It says since when. A worker that was started again is not named, unless several were: then a warning tells it. Slow receivers are named."""
    await seen(queue, 1, 0, in_flight=60, slow=30)
    await seen(queue, 2, 60)
    await seen(queue, 3, 60, stopped_at=1, in_flight=60, slow=30)
    await seen(queue, 4, 2 * 3600)
    (check,) = await found(queue, "workers")
    assert check.result == "ok"
    assert check.message.startswith(
        "1 alive, 60 in flight, 30 of these to slow receivers; 1 of the last hour ended"
    )
    await seen(queue, 5, 60, machine="frozen")
    (check,) = await found(queue, "workers")
    assert check.result == "warning"
    assert "; frozen:5 does not answer since 2" in check.message
    assert "h:2" not in check.message


CHAT = {
    "CHAT_CLIENT_ID": "1",
    "CHAT_CLIENT_SECRET": "2",
    "CHAT_SIGNING_SECRET": "3",
    "BACKEND_PUBLIC_URL": "https://host.example",
    "FLOWACTIONS_ENCRYPTION_KEYS": KEY,
}


@sampled("missing", [None, *CHAT], 2)
async def test_chat_settings_that_are_missing_fail_where_a_workspace_is_connected(
    queue: Queue, missing: str | None
) -> None:
    """The provider is not asked; without an active connection, none of them is needed."""
    settings = {name: value for name, value in CHAT.items() if name != missing}

    async def results() -> list[str]:
        found = await made(partial(check_chat, asks=False), queue.database, **settings)
        assert all(missing is not None and missing in each.message + each.advice for each in found)
        return [each.result for each in found]

    assert "failed" not in await results()
    await queue.run(insert(schema.chat_connections).values(a_connection("acme")))
    assert await results() == ([] if missing is None else ["failed"])
    await queue.run("UPDATE flowactions_chat_connections SET status = 'revoked'")
    assert "failed" not in await results()


async def test_only_tokens_that_are_refused_now_are_told(database_url: str) -> None:
    """One workspace's own refusal is a warning; a message that failed because of a token which is accepted now is over."""
    async with (
        chat_host(database_url, FLOWACTIONS_ENCRYPTION_KEYS=KEY) as run,
        Database(read_settings(run.host.settings).database_url) as database,
    ):
        await run.connect()
        run.sign_in("globex")
        await run.connect(workspace="T00GLOBEX")

        async def told() -> list[tuple[str, str]]:
            found = await made(check_chat, database, **run.host.settings)
            return [(each.result, each.message.partition(" at ")[0]) for each in found]

        now = int(await database.time() * 1000)
        queue = Queue(database)
        await queue.run(update(schema.chat_connections).values(last_error="token_revoked", last_error_at=now))
        assert await told() == [("ok", "the provider accepts 2 of 2 tokens")]
        of_acme = schema.chat_connections.c.organization_id == "acme"
        await queue.run(update(schema.chat_connections).where(of_acme).values(last_error="not_in_channel"))
        assert await told() == [
            ("ok", "the provider accepts 2 of 2 tokens"),
            ("warning", "organization acme: last error not_in_channel"),
        ]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checks_module, "CHAT_TOKENS", 1)
            assert (await told())[0] == (
                "ok",
                "the provider accepts 1 of 1 tokens; 1 more was not asked about, so that it does not throttle us",
            )
        acme, globex = run.provider.state.workspaces
        for token in run.provider.state.tokens_of(acme):
            token.dead = "token_revoked"
        assert await told() == [
            ("warning", "organization acme: token_revoked"),
            ("ok", "the provider accepts 1 of 2 tokens"),
        ]
        assert (await made(check_chat, database, **run.host.settings))[0].advice.endswith(RECONNECT)
        for token in run.provider.state.tokens_of(globex):
            token.dead = "invalid_auth"
        assert await told() == [
            ("failed", "organization acme: token_revoked"),
            ("failed", "organization globex: invalid_auth"),
        ]


@pytest.mark.parametrize(
    ("failed", "arrived", "changes", "told"),
    [
        (3, 0, {}, True),
        (3, 2, {}, True),
        (3, 3, {}, False),
        (2, 0, {}, False),
        (3, 0, {"error_class": "waits"}, False),
        (3, 0, {"status": "dead", "error_class": "cancelled"}, False),
        (3, 0, {"destination": "http://failing:1"}, False),
        (3, 0, {"created_at": 0}, True),
        (3, 0, {"status": "dead", "finished_at": 0}, True),
        (3, 0, {"status": "dead", "finished_at": -7_200_000}, False),
    ],
)
async def test_nodes_whose_deliveries_mostly_fail_are_named(
    queue: Queue, failed: int, arrived: int, changes: dict[str, Any], told: bool
) -> None:
    """From three on that are tried again or died within the hour, however old, as the overview counts them.

    Not where their destination is named, or the failure says nothing of the flow.
    """
    await fails(queue, "http://failing:1")
    now = int(await queue.database.time() * 1000)
    common = {"flow_id": "f", "node_id": "n", "created_at": now}
    why = "Requests to 10.0.0.1 are not allowed (private)."  # as operators read it
    last = {"status": "retrying", "error_class": "http_4xx", "last_error": why, **changes}
    if "finished_at" in last:
        last["finished_at"] += now
    for _ in range(failed):
        await put(queue, **{**common, **last})
    for _ in range(arrived):
        await put(queue, **common, status="delivered")
    checks = await found(queue, "node")
    message = f"node n of flow f of organization acme: {failed} of its last {failed + arrived} deliveries have failed: {why}"
    assert [(each.result, each.message) for each in checks] == ([("warning", message)] if told else [])


@pytest.mark.parametrize(
    ("failing", "alive", "says"), [(0, 1, "idle"), (1, 1, "needs you"), (1, 0, "no_worker")]
)
async def test_the_first_line_is_not_quiet_above_a_warning(
    queue: Queue, failing: int, alive: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`status` begins with the verdict, unless that says that deliveries go on, and something is to be looked at."""
    for number in range(failing):
        await fails(queue, f"http://failing:{number + 1}")
    await seen(queue, 1, 0 if alive else 3600)
    await show_status(CommandContext(None, read_settings({}), queue.database), None)
    assert capsys.readouterr().out.startswith(f"verdict      {says}: ")


async def test_deliveries_in_quarantine_are_named(queue: Queue) -> None:
    """With the command that shows each; more than twenty are only mentioned."""
    await put(queue, takeovers=QUARANTINE_AFTER - 1)
    ids = [await put(queue, takeovers=QUARANTINE_AFTER) for _ in range(NAMED)]
    checks = await found(queue, "quarantine")
    assert [each.advice.rpartition(" ")[2] for each in checks] == ids
    await put(queue, takeovers=QUARANTINE_AFTER + 1)
    assert (await found(queue, "quarantine"))[-1].message == "1+ more deliveries are in quarantine"


async def test_a_provider_whose_events_are_all_refused_is_named(queue: Queue) -> None:
    """Within the last hour, with the reason of the latest; an event that was processed shows that the secret is right."""
    now = int(await queue.database.time() * 1000)

    async def requests(provider: str, result: str, ago_ms: int, number: int = 1, reason: str = "why") -> None:
        values = {"provider": provider, "first_at": 1_700_000_000_000, "last_at": now - ago_ms}
        await queue.run(
            insert(schema.inbound_requests).values(
                **values, result=result, cause=reason, status_code=401, reason=reason, requests=number
            )
        )

    await requests("chat", "acknowledged", 1000)
    await requests("chat", "refused", 3_700_000)
    await requests("auth", "refused", 2000, reason="older")
    await requests("auth", "refused", 1000, number=5, reason="the signature does not fit")
    (check,) = await found(queue, "inbound")
    assert (check.result, check.advice) == ("warning", "see the page 'Inbound events'")
    assert check.message == (
        "no event of the auth provider was processed within the last hour; 5 requests were refused since "
        "2023-11-14T22:13:20Z: the signature does not fit"
    )
    event = {"provider": "auth", "event_id": "1", "received_at": now - 3000}
    await queue.run(insert(schema.inbound_events).values(event))
    assert await found(queue, "inbound") == []


async def test_one_of_a_kind_is_said_as_one(queue: Queue) -> None:
    """What waits, further failures, and failures of alerts: in doctor and in the numbers of status."""
    now = int(await queue.database.time() * 1000)
    await put(queue, waiting_since=now, last_error="Host.signing_secret failed", error_class="waits")
    for number in range(NAMED + 1):
        await fails(queue, f"http://now{number:02}:1", failing_since=now - 1000 + number)
    await fails(queue, "http://127.0.0.1:9", organization_id="", failures_in_row=1)
    settings = {**SETTINGS, "FLOWACTIONS_ENVIRONMENT": "development"}
    said = [each.message for each in await made(check_deliveries, queue.database, **settings)]
    assert "1 delivery waits, without an attempt," in " ".join(said)
    assert "1 more destination fails" in said
    assert any("alerts do not arrive at http://127.0.0.1:9: 1 failure in a row since" in each for each in said)
    findings = (await Insights(queue.database, read_settings(settings)).overview(Scope())).findings
    assert {each.words for each in findings} <= set(said)  # the same words everywhere
    assert (plural(1, "row"), plural(1, "row", exact=False), plural(2500, "row"), plural(0, "key", "keys")) == (
        "1 row",
        "1+ rows",
        "2,500 rows",
        "0 keys",
    )
