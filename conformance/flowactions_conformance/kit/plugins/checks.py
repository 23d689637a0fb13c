"""What is checked of a node type. Each check follows from sentences of the contract that bind authors of plugins."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from flowactions_conformance.kit.plugins.tried import STEP, Tried, _read, expect
from flowactions_conformance.kit.registry import Check, Run
from flowactions_conformance.receiver.verify import verify
from flowactions_hookspecs import Deferred, InTransaction, PluginOrigin

ODD: Final[Sequence[Any]] = (None, "", 0, False, [], {}, -1, 1.5, "x" * 10_000, ["x"], {"x": "y"})
"""What an author, an import or an older version may leave in a field."""
SECRET_NAME: Final = re.compile(r"secret|token|password|api_?key|credential", re.IGNORECASE)
UNWRITTEN: Final = "it says queued, and no delivery was written"
SAYS_WHERE: Final = "what the plugin raised is in the lines that were logged"


CHECKS: Final[list[Check]] = []


def _check(sentence: str, *causes: str) -> Callable[[Run], None]:
    """Add a check, which follows from a sentence of the contract."""

    def add(run: Run) -> None:
        title, id_ = str(run.__doc__).partition("\n")[0], f"PLUGIN-{len(CHECKS) + 1}"
        CHECKS.append(Check(id_, "", title, f"contract: {sentence}", causes, run))

    return add


@_check(
    "Its editor offers each of `node_types` as `describe()` returns it.",
    "title or description is empty",
    "secret_fields names a field that the config does not have",
)
async def _is_described(tried: Tried) -> None:
    """The editor gets a title, a description and a form."""
    node_type = tried.node_type
    described = node_type.describe()
    for name in ("title", "description"):
        expect(described[name].strip(), f"{node_type.name} has no {name}: its author sees an empty line")
    msgspec.json.encode(described)
    fields = set(node_type.config_schema.get("properties", {}))
    unknown = sorted(set(node_type.secret_fields) - fields) if fields else []
    expect(
        not unknown,
        f"secret_fields of {node_type.name} names {unknown}",
        f"fields of the config: {sorted(fields)}",
        unknown,
    )


@_check(
    "`NodeType.reach(walk, node)` is called only to run the node, with each pacing: the runtime does the recording, order, lease, recovery and halting.",
    "the config that was given is not a valid one: give it with --config",
    "reach returns something else than a NodeResult or InTransaction",
    "write commits, rolls back or closes the transaction that it is given",
)
async def _runs(tried: Tried) -> None:
    """A node with a valid config runs."""
    result = await tried.actions.reach(tried.walk(), tried.node())
    expect(
        result.status in {"sent", "queued"},
        f"a node of {tried.node_type.name} did not run: {result.reason}. If the plugin has failed, {SAYS_WHERE}",
        "sent or queued",
        result,
    )


@_check(
    "If `reach` returns anything else, nobody can know whether the effect has happened: the node is `failed` with `plugin_error`, and is not repeated.",
    "a field is used without looking whether it is there, or of which type: the editor saves what its author has typed",
)
async def _bears_odd_configs(tried: Tried) -> None:
    """Whatever a config holds, reach, check and preview answer; none of them raises."""
    fields = [*dict.fromkeys([*tried.node_type.config_schema.get("properties", {}), *tried.config])]
    odd = [{}, {**tried.config, "a-field-of-no-version": True}]
    odd += [{**tried.config, field: value} for field in fields for value in ODD]
    for config in odd:
        shown = _shown(config)
        result = await tried.actions.reach(tried.walk(), tried.node(config))
        expect(
            result.reason != "plugin_error",
            f"reach failed for the config {shown}; {SAYS_WHERE}",
            "skipped or failed, with a reason of the plugin's and a message for the author",
            result,
        )
        problems = await tried.actions.check(tried.draft(config))
        expect(
            not any(problem.code == "plugin_error" for problem in problems),
            f"check failed for the config {shown}; {SAYS_WHERE}",
            "what is wrong with it, in words for its author",
            problems,
        )
        preview = await tried.actions.preview(tried.draft(config), tried.walk())
        expect(
            not any(problem.code == "plugin_error" for problem in preview.problems),
            f"preview failed for the config {shown}; {SAYS_WHERE}",
            "a preview",
            preview,
        )


@_check(
    "`NodeType.reach(walk, node)` is called only to run the node, with each pacing: the runtime does the recording, order, lease, recovery and halting.",
    "reach looks at walk.pacing: when it is called, the node is to run",
)
async def _ignores_the_pacing(tried: Tried) -> None:
    """In a client-paced walk it does at its step what it does in another one at once."""
    eager = await tried.actions.reach(tried.walk(), tried.node())
    before = len(tried.rows())
    deferred = await tried.advanced(tried.walk())
    same = ("status", "reason", "halt")
    expect(
        all(getattr(eager, name) == getattr(deferred, name) for name in same),
        "in a client-paced walk another result came",
        eager,
        deferred,
    )
    expect(len(tried.rows()) > before or eager.status != "queued", UNWRITTEN)


@_check(
    "When a walk is repeated, in another process as well, its passages have the same names.",
    "entity leaves out the run's id, or walk.visit: name organization, flow, run, node and visit",
    "entity or body holds something that changes from call to call, as the time: a walk that is repeated after a crash sends twice",
)
async def _events_are_apart(tried: Tried) -> None:
    """Each run and each visit has an event of its own, and a walk that is repeated has the same again."""
    known = {row.event_id for row in tried.rows()}
    first = tried.walk()
    walks = {
        "a first run": first,
        "another run": tried.walk(),
        "another visit of the first run": msgspec.structs.replace(first, visit="2"),
    }
    for name, walk in walks.items():
        result = await tried.actions.reach(walk, tried.node())
        now = {row.event_id for row in tried.rows()}
        if result.status != "queued":
            return  # its effect is not a delivery
        expect(now - known, f"{name} has an event id that was used before")
        known = now
    await tried.actions.reach(first, tried.node())
    again = {row.event_id for row in tried.rows()} - known
    expect(not again, "the same walk, repeated, has another event id", actual=sorted(again))


@_check(
    "It does SQL only, in eight seconds on SQLite and three on PostgreSQL, and may be called again.",
    "write makes a new event each time: prepare the webhook before, in reach",
    "write does something outside of the transaction",
)
async def _writes_again(tried: Tried) -> None:
    """What write has done in a transaction that is rolled back is gone, and it can be called again."""
    database = tried.hosts[0][0].host.database
    assert database is not None  # noqa: S101  the reference host has one
    outcome = await tried.node_type.reach(tried.walk(), tried.node())
    if not isinstance(outcome, InTransaction):
        return
    before = len(tried.rows())
    async with database.connect() as connection:
        transaction = await connection.begin()
        await outcome.write(connection)
        await transaction.rollback()
    left = len(tried.rows()) - before
    expect(not left, "what write has done is there, although its transaction was rolled back", 0, left)
    for _ in range(2):
        async with database.begin() as connection:
            await outcome.write(connection)
    written = len(tried.rows()) - before
    expect(written <= 1, "write was called twice, and two deliveries were written", 1, written)


@_check(
    "A plugin whose webhooks are unsigned also declares their names, with functions that return `None`.",
    "flowactions_signing_secrets does not name the origin's name",
    "the function raises something else than OriginGone, so that deliveries wait for it",
    "the function returns another secret than the receiver has, or looks it up by the wrong id",
)
async def _is_signed(tried: Tried) -> None:
    """Each delivery arrives, and is signed with what its origin's function returns."""
    await tried.actions.reach(tried.walk(), tried.node())
    for row in await tried.ended():
        origin = row.origin
        if origin.get("kind") != "plugin" or origin.get("plugin") != tried.plugin:
            continue
        resolver = tried.actions.signing_secrets.get((tried.plugin, origin["name"]))
        expect(
            resolver is not None,
            f"deliveries have the origin {origin['name']!r}, for which no signing secret is declared",
            f"flowactions_signing_secrets with {origin['name']!r}, if need be with a function that returns None",
            sorted(name for plugin, name in tried.actions.signing_secrets if plugin == tried.plugin),
        )
        arrivals = [each for each in tried.receiver.arrivals if each.event_id == row.event_id]
        expect(
            arrivals,
            f"a delivery did not arrive: {row.error or row.status}. If the plugin has failed, {SAYS_WHERE}",
            "it arrives at the kit's receiver: name it in a setting or config as {receiver}",
            row,
        )
        assert resolver is not None  # noqa: S101  expected above
        secret = await resolver(msgspec.convert(origin, PluginOrigin))
        found = verify(secret or "", dict(arrivals[-1].headers), arrivals[-1].body.encode(), arrivals[-1].at)
        expect(
            found == ("verified" if secret else "unsigned"),
            "a delivery has another signature than its origin's secret gives",
            "verified" if secret else "unsigned",
            found,
        )


@_check(
    "A node type has its own `check` and `preview`; without them, a node has no problems and no preview.",
    "check or preview runs the node to see whether it works",
    "check finds an error in a config with which the node runs",
)
async def _asks_without_effect(tried: Tried) -> None:
    """Check and preview send nothing and write nothing, and a valid config has no error."""
    before, arrived = await tried.ended(), len(tried.receiver.arrivals)
    problems = await tried.actions.check(tried.draft())
    await tried.actions.preview(tried.draft(), tried.walk())
    errors = [problem for problem in problems if problem.severity == "error"]
    expect(not errors, "check finds errors in the config with which the node runs", "none", errors)
    after = await tried.ended()
    expect(len(after) == len(before), "check or preview has written a delivery", "none", after[-1:])
    expect(len(tried.receiver.arrivals) == arrived, "check or preview has sent a request")


@_check(
    "In the draft for a preview, `secret_fields` are masked; in the draft for `check` and `test`, they are not.",
    "the field is missing in secret_fields",
    "a preview or a message holds a secret that the plugin has from elsewhere",
)
async def _keeps_secrets(tried: Tried) -> None:
    """A secret field's value is in no preview, and in no record of a node that waits for its step."""
    fields = {*tried.node_type.config_schema.get("properties", {}), *tried.config}
    named = sorted(field for field in fields if SECRET_NAME.search(field))
    unmarked = sorted(set(named) - set(tried.node_type.secret_fields))
    expect(
        not unmarked,
        f"{', '.join(unmarked)} of {tried.node_type.name} is stored and shown in clear",
        f"secret_fields with {unmarked}",
        list(tried.node_type.secret_fields),
    )
    marker = f"secret-{secrets.token_hex(12)}"
    config = {**tried.config, **dict.fromkeys(tried.node_type.secret_fields, marker)}
    preview = await tried.actions.preview(tried.draft(config), tried.walk())
    expect(
        marker not in msgspec.json.encode(preview).decode(), "the preview shows a secret field", actual=preview
    )
    walk = tried.walk(pacing=Deferred(STEP))
    await tried.actions.reach(walk, tried.node(config))
    records = _read(tried.hosts[0][1], "SELECT node FROM flowactions_deferred")
    expect(not any(marker in str(row[0]) for row in records), "a record holds a secret field")


@_check(
    "A plugin keeps its data for a host in `actions.plugin_state(factory)`.",
    "the facade, a setting or a client is a global of the module: two hosts in a process have one",
)
async def _hosts_are_apart(tried: Tried) -> None:
    """Two hosts in one process share nothing: each has its own deliveries."""
    first, second = len(tried.rows(0)), len(tried.rows(1))
    result = await tried.hosts[1][0].actions.reach(tried.walk(), tried.node())
    expect(len(tried.rows(0)) == first, "a node of one host has written a delivery into another one")
    expect(len(tried.rows(1)) > second or result.status != "queued", UNWRITTEN)


def _shown(config: Mapping[str, Any]) -> str:
    text = json.dumps(config)
    return text if len(text) < 300 else f"{text[:300]}…"
