"""LOGIC: a customer's backend, or the server itself, fires a webhook action that is configured in an experience."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from msgspec.structs import replace

from flowactions_conformance.kit.outcomes import DriverFault, NotTestable
from flowactions_conformance.kit.registry import check
from flowactions_conformance.kit.support.pair import Pair
from flowactions_conformance.kit.support.survey import OTHER_SECRET, SECRET, Survey
from flowactions_conformance.kit.trial import Trial
from flowactions_conformance.kit.under_test import Trigger, TriggerRef
from flowactions_conformance.receiver import Arrival

UNSIGNED: Final = (
    "an own signing_secret knows only the origins of flow nodes: call super().signing_secret(origin) for the rest",
    "logic_action returns another action, or one without its secret",
)
CLOCK_SECONDS: Final = 5
"""By how much the host's clock and the kit's may differ."""


@check(
    "LOGIC-1",
    profile="logic",
    clause="http: Trigger a logic webhook; contract: What a host provides (logic_action); spec 2.7, 4.2",
    causes=(
        "logic_action returns another action, or one without its headers or its secret",
        "agent() or api_principal() does not know the agent or the backend",
        "ids are changed on the way, for example lower-cased",
    ),
)
async def arrives_as_configured(trial: Trial) -> None:
    """A logic webhook arrives at its action's URL, with its headers and signature and an envelope of the host's ids."""
    survey = Survey(trial)
    row = survey.row("row", survey.action("of-row", **{"X-Row": "row's own"}))
    group = survey.group("group", survey.action("of-group", OTHER_SECRET, **{"X-Group": "group's own"}))
    await survey.seed(row, group)
    for trigger, name, secret, header in (
        (row, "of-row", SECRET, ("x-row", "row's own")),
        (group, "of-group", OTHER_SECRET, ("x-group", "group's own")),
    ):
        taken = await survey.fires(trigger)
        arrived = (await trial.until_arrived(name))[0]
        trial.equal(arrived.event_id, taken["eventId"], "the webhook that arrived is another event")
        _signed(trial, arrived, secret, f"the webhook of {name}")
        trial.expect(
            header in arrived.headers,
            f"{name}: the action's header is missing",
            expected=header,
            actual=arrived.headers,
        )
        _check_envelope(trial, arrived, trigger)


@check(
    "LOGIC-2",
    profile="logic",
    clause="http: Trigger a logic webhook; spec 2.8, 4.2",
    causes=(
        "the host, or a route or middleware of it, reads the destination from the request: take it from the config only",
    ),
)
async def destination_is_not_the_clients(trial: Trial) -> None:
    """Whatever a caller puts into the body, the webhook goes where its action says, with the action's headers."""
    survey = Survey(trial)
    await survey.seed(survey.row("row", survey.action("configured")))
    theirs: dict[str, Any] = {
        "url": trial.hook("theirs"),
        "webhookUrl": trial.hook("theirs"),
        "destination": trial.hook("theirs"),
        "method": "PUT",
        "headers": [{"key": "X-Theirs", "value": "1"}],
        "secret": "theirs",
        "action": {"url": trial.hook("theirs")},
    }
    await survey.fires("row", **theirs)
    arrived = (await trial.until_arrived("configured"))[0]
    await trial.nothing_more_is_sent()
    trial.equal(trial.arrivals("theirs"), [], "a webhook was sent to the URL that the caller gave")
    trial.equal(arrived.method, "POST", "the webhook was sent with the caller's method")
    trial.expect("x-theirs" not in dict(arrived.headers), "the webhook was sent with the caller's headers")
    _signed(trial, arrived, SECRET)


@check(
    "LOGIC-7",
    profile="logic",
    clause="contract: dispatch, Ids (firing_id); spec 2.7, 6.1",
    causes=(
        "firing_id is the action's or the experience's id, or made of the time, and not new for each firing: receivers drop all but the first",
        "the trigger calls the action's URL itself, and not actions.dispatch",
        "the reference has other ids than the one that a customer's backend names",
        "occurred_at is a local time with the zone UTC, a time from the config, or that of an earlier firing",
    ),
)
async def fires_on_the_server(trial: Trial) -> None:
    """A trigger that fires on the server sends its webhook once for each firing, each of them an event of its own."""
    survey = Survey(trial)
    row = survey.row("row", survey.action("other"), survey.action("fired", OTHER_SECRET, **{"X-Row": "own"}))
    await survey.seed(row)
    ref = TriggerRef(
        organization=trial.organization, agent=trial.agent, experience=survey.id, trigger=row.id, action_index=1
    )
    for count in (1, 2):
        began = datetime.now(UTC)
        await trial.call("trigger", ref)
        ended = datetime.now(UTC)
        newest = (await trial.until_arrived("fired", count))[-1]
        _check_time(trial, newest, began, ended)
        _signed(trial, newest, OTHER_SECRET)
        trial.equal(dict(newest.headers).get("x-row"), "own", "the action's header is missing")
        trial.equal(newest.event_type, "experience.logic_action.webhook", "the webhook has another event type")
        _check_envelope(trial, newest, row, index=1)
    await asyncio.gather(*(trial.call("trigger", ref) for _ in range(2)))
    await trial.nothing_more_is_sent()
    events = [arrival.event_id for arrival in trial.arrivals("fired")]
    trial.equal(len(events), 4, "four firings did not send four webhooks")
    trial.equal(len(set(events)), 4, "two firings have the same event id, so receivers drop the second one")
    trial.equal(trial.arrivals("other"), [], "another action was sent, too")
    if "tenancy" in trial.session.claims:
        await _not_for_others(trial, ref)


async def _not_for_others(trial: Trial, ref: TriggerRef) -> None:
    pair, before = Pair(trial), len(trial.arrivals("fired"))
    await trial.seed(world=pair.world())
    try:
        await trial.call("trigger", replace(ref, organization=pair.other, agent=pair.other_agent))
    except (DriverFault, NotTestable) as exc:
        trial.note("host", f"refuses: {exc}")
    await trial.nothing_more_is_sent()
    trial.equal(
        len(trial.arrivals("fired")), before, "a trigger of another organization's experience was fired"
    )


def _signed(
    trial: Trial, arrived: Arrival, secret: str, what: str = "the webhook", causes: tuple[str, ...] = UNSIGNED
) -> None:
    signature = trial.signature_of(arrived, secret)
    trial.equal(signature, "verified", f"{what} is not signed with the action's secret", causes)


def _check_time(trial: Trial, arrived: Arrival, began: datetime, ended: datetime) -> None:
    told = json.loads(arrived.body)["data"]["occurredAt"]
    clocks, said = timedelta(seconds=CLOCK_SECONDS), datetime.fromisoformat(told)
    trial.expect(
        began - clocks <= said <= ended + clocks,
        "a trigger that fired on the server has another occurred_at than the time at which it fired: "
        f"{abs(said - began)} {'after' if said > began else 'before'} it",
        expected=f"{began.isoformat()} to {ended.isoformat()}, up to {CLOCK_SECONDS} s before or after",
        actual=told,
    )


def _check_envelope(trial: Trial, arrived: Arrival, trigger: Trigger, index: int = 0) -> None:
    data = json.loads(arrived.body)["data"]
    expected = {
        "entityId": trial.of_host(trigger.id if trigger.node is None else trigger.node),
        "agentId": trial.of_host(trial.agent),
        "experienceId": trial.of_host(trial.id("experience")),
        "source": "experience_trigger" if trigger.node is None else "node_trigger",
        "actionIndex": index,
    }
    trial.equal(
        {name: data.get(name) for name in expected}, expected, "the envelope has other ids than the host"
    )
