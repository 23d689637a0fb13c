"""Faulty hosts: each is a healthy host with a small patch of its source.

Some are invented, of different kinds, and were written down before the checks that find them. Some are changes of one line that
chance has drawn. Of the rest each is for a check.
"""

from __future__ import annotations

import importlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from flowactions_conformance.kit.under_test import Factory
from tests.conformance.middleware import Answer, around

ROOT = Path(__file__).parents[2]
HOSTS = {
    "reference": (
        "flowactions_conformance.reference_host",
        ROOT / "conformance/flowactions_conformance/reference_host",
    ),
    "flask": ("tests.conformance.hosts.flask_host", ROOT / "tests/conformance/hosts/flask_host.py"),
}
PRELUDE = """
import asyncio, base64, json, logging, os, re, threading, time, unicodedata, uuid
from collections import Counter
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from functools import cache
from hashlib import sha256
from itertools import count
from pathlib import Path
from msgspec.structs import replace
from tests.conformance.faulty import FLOWS, NEVER_LEFT, Repeating, answered, keys, without_header, written_anew
from tests.conformance.middleware import PLUGIN, Answer, again, answer_of, around, json_answer, send_answer, whole
"""
APP = "self.app = made.app"
FUTURE = "from __future__ import annotations\n"
CONFIG = 'config=item["config"])\n            result'


FLOWS: dict[str, Any] = {}
NEVER_LEFT: list[Any] = []


class Fault(NamedTuple):
    """A host that breaks one promise.

    Attributes:
        name: of the host, and in test ids.
        breaks: the promise that it breaks, in one sentence.
        found: the ids of the checks that find it; none if the kit does not.
        says: a part of what they say, or why they do not.
        edits: of the healthy host's modules, one after the other: module, text, and what replaces it.
        host: the healthy host.
    """

    name: str
    breaks: str
    found: str
    says: str
    edits: tuple[tuple[str, str, str], ...]
    host: str = "reference"


class Repeating(httpx.AsyncHTTPTransport):
    """Repeats requests that failed."""

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        body = await request.aread()
        answer = await super().handle_async_request(request)
        if answer.status_code < 500:
            return answer
        await answer.aclose()
        again = httpx.Request(request.method, request.url, headers=request.headers, content=body)
        return await super().handle_async_request(again)


def written_anew(body: bytes) -> bytes:
    """Write JSON as Python does."""
    try:
        return json.dumps(json.loads(body)).encode()
    except ValueError:
        return body


def keys(change: Callable[[str], str], value: Any) -> Any:
    """Change each key in a JSON value."""
    if isinstance(value, list):
        return [keys(change, each) for each in value]
    return (
        {change(key): keys(change, each) for key, each in value.items()} if isinstance(value, dict) else value
    )


def answered(app: Any, change: Callable[[bytes, bytes], bytes | None]) -> Any:
    """Wrap an app so that each header of its answers is changed, or dropped for ``None``."""

    def rewrite(_: Any, answer: Any) -> Any:
        changed = [(name, change(name.lower(), value)) for name, value in answer.headers]
        return Answer(answer.status, [(n, v) for n, v in changed if v is not None], answer.body)

    return around(app, rewrite=rewrite)


def without_header(scope: Any, drop: Callable[[bytes, bytes], bool]) -> Any:
    """Drop request headers."""
    return {**scope, "headers": [pair for pair in scope["headers"] if not drop(*pair)]}


def config(name: str, breaks: str, found: str, says: str, change: str) -> Fault:
    """Return a host that changes the config of a node on its way to the plugin."""
    return walker(name, breaks, found, says, CONFIG, CONFIG.replace('item["config"]', change))


def opening(
    name: str, breaks: str, found: str, says: str, user: str = "data.user_id", content: str = "data.content"
) -> Fault:
    """Return a host that changes user or content when a flow is opened."""
    call = "walker.open(flow, data.user_id, data.content)"
    return api(name, breaks, found, says, call, f"walker.open(flow, {user}, {content})")


def app(name: str, breaks: str, found: str, says: str, change: str) -> Fault:
    """Return a host whose app is wrapped."""
    return driver(name, breaks, found, says, APP, f"self.app = {change}")


def of(host: str, file: str) -> Callable[[str, str, str, str, str, str], Fault]:
    """Return what makes faults of a module of a host."""
    return lambda name, breaks, found, says, old, new: Fault(
        name, breaks, found, says, ((file, old, new),), host
    )


host, walker, store, api, driver = (
    of("reference", f"{name}.py") for name in ("host", "walker", "store", "api", "testing")
)
flask = of("flask", "testing.py")

INVENTED = [
    # Values
    opening("user-number", "A user '007' becomes '7'.", "MODEL-1", "a user: digits with leading zeros", user="str(int(data.user_id)) if data.user_id.isdigit() else data.user_id"),
    opening("content-normal", "The content arrives in another normal form of Unicode.", "MODEL-1", "it was normalized: Unicode NFC", content='unicodedata.normalize("NFC", data.content)'),
    config("key-dots", "A key 'a.b' of a config becomes 'a_b'.", "EDIT-5", " is missing; it was ", 'keys(lambda key: key.replace(".", "_"), item["config"])'),
    walker("flow-lower", "A flow's id loses its capitals on the way to the plugin.", "MODEL-1", "flowId of the walk is not the run's", "flow_id=run.flow.id", "flow_id=run.flow.id.lower()"),
    host("node-folded", "Nodes whose ids differ in case only are taken for each other.", "EAGER-6", "of two nodes whose ids differ in upper and lower case only, TWIN is not signed w", 'item["id"] == node_id', 'item["id"].lower() == node_id.lower()'),
    api("occurred-earlier", "A trigger is said to have fired an hour before it did.", "LOGIC-7", "before it", "datetime.now(UTC)", "datetime.fromtimestamp(datetime.now(UTC).timestamp() - 3600, UTC)"),
    api("firing-again", "Each firing of a trigger has the same id.", "LOGIC-7", "has another occurred_at", "firing_id=uuid4().hex, occurred_at=datetime.now(UTC)", 'firing_id=f"{experience_id}-{row_id}", occurred_at=datetime.fromtimestamp(1790000000, UTC)'),
    # Who may do what
    api("stranger-saves", "An author of another organization can save over a flow.", "SAVING-6", "a flow was changed by a person of another organization", "if flow is None or flow.organization_id != person.organization_id", "if flow is None"),
    api("reader-saves", "A reader can save a flow and fire a trigger.", "SAVING-6", "a flow was changed by a person who may only look", "if not principal.may_change:", "if False:"),
    host("right-kept", "Who may change something once may do so for ever.", "METHODS-1", "whose right to change things was given a moment ago", '        return await self.store.one(tables.people, id=found["person_id"]) if found else None', '        kept = self.__dict__.setdefault("_kept", {})\n        if token not in kept and found:\n            kept[token] = await self.store.one(tables.people, id=found["person_id"])\n        return kept.get(token) if found else None'),
    host("agents-kept", "A backend keeps the agents that were taken away from it.", "METHODS-1", "a backend that may address ", '        agent_ids = found["agent_ids"]', '        agent_ids = self.__dict__.setdefault("_agents", {}).setdefault(found["id"], found["agent_ids"])'),
    host("no-agent-is-all", "A backend without agents may address all of them.", "METHODS-1", "for a backend that may address no agent now", "all_agents=agent_ids is None", "all_agents=not agent_ids"),
    host("question-ignored", "A trigger group fires for an answer to another question.", "METHODS-3", "a survey question's group with another question", "if question != ref.question_id:", "if False:"),
    # What passes through
    app("paths-lowered", "Paths are lower-cased.", "HTTP-13", "'Ab3/aB3' reached the plugin changed", 'around(made.app, scope_of=lambda scope: {**scope, "path": scope["path"].lower(), "raw_path": scope["path"].lower().encode()})'),
    app("slashes-merged", "Two slashes in a path become one.", "", "the router of the plugin's own routes merges slashes, too, so no plugin can tell", 'around(made.app, scope_of=lambda scope: {**scope, "path": re.sub("/+", "/", scope["path"]), "raw_path": re.sub(b"/+", b"/", scope.get("raw_path") or b"")})'),
    app("cookie-attributes", "Cookies lose an attribute.", "HTTP-13", "the cookies of a plugin's answer lost their attributes httponly", 'answered(made.app, lambda name, value: re.sub(b"(?i); *httponly", b"", value) if name == b"set-cookie" else value)'),
    app("header-dropped", "A header of an answer is dropped.", "HTTP-13", "the header cache-control of an answer with status ", 'answered(made.app, lambda name, value: None if name == b"cache-control" else value)'),
    app("status-ok", "A status 201 or 202 becomes 200.", "HTTP-13", "got another one", "around(made.app, rewrite=lambda _, answer: answer._replace(status=200 if answer.status in (201, 202) else answer.status))"),
    app("body-cut", "A long answer is cut.", "HTTP-13", "the body of an answer with status 202 was changed", "around(made.app, rewrite=lambda _, answer: answer._replace(body=answer.body[:65536]))"),
    app("asked-empty", "Request headers without a value are dropped.", "HTTP-13", "the header x-kit-3 reached the plugin changed", 'around(made.app, scope_of=lambda scope: without_header(scope, lambda _, value: value == b""))'),
    # Structure and time
    flask("rounds-ten", "The eleventh round of a loop is taken for the first.", "MODEL-5", "the passages of a run are not distinguished", ':{number}/"', ':{number % 10}/"'),
    flask("subflow-old", "An edit of a sub-flow is not seen by new runs.", "LOOPS-4", "a run does not see that a sub-flow was edited before it began", 'partial(store.get, "flow")', 'store.__dict__.setdefault("_subs", cache(partial(store.get, "flow")))'),
    flask("nodes-on-top", "A node within a loop or branch is not found.", "EAGER-6", "did not arrive (its node stands in a ", 'every(flow["items"]):\n            if item["kind"] == "action"', 'flow["items"]:\n            if item["kind"] == "action"'),
    store("runs-mixed", "Of two runs of a user at once, the older goes on as the newer.", "MODEL-4", "kept for the flow or the process, and not for the run", "row = await self.one(runs, session=session)", "row = await self.one(runs, session=session)\n        row = row and max(await self.find(runs, flow_id=row['flow_id'], user_id=row['user_id']), key=lambda each: each['opened_at'])"),
    walker("user-shared", "Of two users who open a flow at once, one is taken for the other.", "LOAD-3", "of two hosts that run in two threads, one gets what belongs to a walk of the oth", "            user_id=user_id,\n            content=content,\n            opened_at", "            user_id=(setattr(self, 'user', user_id), await asyncio.sleep(0.05), self.user)[2],\n            content=content,\n            opened_at"),
    walker("halts-flow", "A run that was halted halts all later runs of its flow.", "MODEL-3", "was not reached", "            if result.halt:", "            halted = self.__dict__.setdefault('_halted', set())\n            if result.halt or flow.id in halted:\n                halted.add(flow.id)"),
    api("problems-first", "Only the first node with problems is told to the author.", "SAVING-1", "the problem 'probe_warning' of the node warned as the plugin tells it", '            found += [{"nodeId"', '            found = found or [{"nodeId"'),
]  # fmt: skip


@cache
def _package(fault: Fault) -> str:
    """Write the patched host as a package of its own, and return the package's name."""
    name, folder = HOSTS[fault.host]
    package = f"faulty_{fault.name.replace('-', '_')}"
    parent = Path(tempfile.mkdtemp(prefix="faulty-"))
    if folder.is_dir():
        shutil.copytree(folder, parent / package, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        (parent / package).mkdir()
        shutil.copy(folder, parent / package / "testing.py")
    for path in (parent / package).glob("*.py"):
        source = path.read_text().replace(name, package)
        for _, old, new in (each for each in fault.edits if each[0] == path.name):
            assert old in source, fault.name
            source = source.replace(old, new)
        if path.name in {each[0] for each in fault.edits}:
            # The middleware's last lines are the driver's; what is imported must follow the __future__ import.
            source = source.replace(FUTURE, f"{FUTURE}{PRELUDE}", 1)
        path.write_text(source)
    sys.path.append(str(parent))
    return package


def factory_of(fault: Fault) -> Factory:
    """Return the factory of a faulty host."""
    made: Factory = importlib.import_module(f"{_package(fault)}.testing").make_host
    name = fault.name.replace("-", "_")
    made.__module__, made.__qualname__ = __name__, name
    return made


def together(first: Fault, *others: Fault) -> Fault:
    """Return a host with several faults, or the one that is given."""
    edits = tuple(edit for fault in (first, *others) for edit in fault.edits)
    return first._replace(name=f"{first.name}-and-others", edits=edits) if others else first


def __getattr__(name: str) -> Any:
    """Find the factory of a fault by its name, for child processes."""
    for fault in FAULTS if "FAULTS" in globals() else []:
        if fault.name.replace("-", "_") == name:
            return factory_of(fault)
    raise AttributeError(name)


DRAWN = [
    host("drawn-01", "A trigger group fires for every answer but the right one.", "METHODS-3", "Host.logic_action answers ", "            if question != ref.question_id:\n", "            if question == ref.question_id:\n"),
    store("drawn-02", "Nobody can sign in: every token is taken for an old one.", "LOAD-1", "401 Unauthorized", '        return found if found is not None and found["expires_at"] > time.time() else None\n', '        return found if found is None and found["expires_at"] > time.time() else None\n'),
    host("drawn-03", "`agents_using` returns no agent of the organization.", "METHODS-1 METHODS-2", "Host.agents_using answers [] for the type 'webhook'", "        own = await self.store.find(tables.agents, organization_id=organization_id)\n", "        own = await self.store.find(tables.agents, organization_id=None)\n"),
    store("drawn-04", "A halt does not end a run that another request has moved; a run that is not halted moves twice.", "", "it shows only if a request is held between the plugin's answer and the host's own write", "        if not halted:\n", "        if halted:\n"),
    walker("drawn-08", "A run that was halted when it was opened is said to go on.", "MODEL-3", "the run continues after a node that halts", "                return Turn(run.session, None, shown, done=True)\n", "                return Turn(run.session, None, shown, done=False)\n"),
    walker("drawn-09", "A turn shows the step before the one that the run has reached.", "MODEL-2", ", but with the next from the last step", "        return _turn(await self._store.run(run.session) or run)\n", "        return _turn(await self._store.run(run.session) and run)\n"),
    store("drawn-14", "A run moves all other runs in place of itself.", "MODEL-2", "", "        moved = update(runs).where(runs.c.id == run.id)\n", "        moved = update(runs).where(runs.c.id != run.id)\n"),
    api("drawn-18", "No flow with more or fewer than one item can be saved.", "SAVING-1", "400", '    if len({item["id"] for item in data.items}) != len(data.items):\n', '    if len({item["id"] for item in data.items}) == len(data.items):\n'),
    walker("drawn-19", "A run begins at its second step, so the nodes before the first two steps are never run.", "MODEL-2", "the run begins at a later step", "            position=0 if begins_with_step else -1,\n", "            position=1 if begins_with_step else -1,\n"),
]  # fmt: skip
"""Of twenty that were drawn, those that break a promise, each in a way of its own."""

ALTERED = [
    # Who may do what
    host("back-door", "Without a credential, a developer's back door signs the first person in.", "AUTH-1 HTTP-1", "GET /v1/webhooks/outbox without a credential is answered 200", "        token = _bearer(request) or", '        if "authorization" not in request.headers:\n            return (await self.store.find(tables.people))[0]\n        token = _bearer(request) or'),
    host("any-bearer", "Whatever bearer token is given, somebody is signed in.", "AUTH-1 METHODS-1", "Host.dashboard_principal answers something for a backend's credential", 'id=found["person_id"]) if found else None', 'id=found["person_id"]) if found else (await self.store.find(tables.people))[0] if _bearer(request) else None'),
    host("nobody-may-change", "may_change is never true.", "METHODS-1", "for a person", 'may_change=person["may_change"],\n', "may_change=False,\n"),
    Fault("signature-ignored", "The signature behind a token is cut off and not compared.", "AUTH-6", "is answered when a person's credential comes with its middle character changed, with its last character changed", (("host.py", "    return token.strip()", '    return token.strip().partition(".")[0]'), ("testing.py", '"Bearer {_token(who)}"', '"Bearer {_token(who)}.{sha256(_token(who).encode()).hexdigest()}"'))),
    host("first-organization", "Whoever is signed in belongs to the first organization of a check's own.", "METHODS-2 TENANCY-1", "does not see exactly the deliveries of the organization", 'organization_id=person["organization_id"],\n', 'organization_id=min(row["id"] for row in await self.store.find(tables.organizations) if row["id"].endswith(person["id"].rpartition("-")[2])),\n'),
    host("install-of-who-began", "Whoever the chat provider sends back is taken for who has begun an install.", "TENANCY-2", "an install that was begun in another organization was not refused", "        person = await self._person(request)\n        if person is None:\n            return None\n", """        person = await self._person(request)
        if request.path.endswith("/chat/install"):
            self.__dict__["_began"] = person
        elif request.path.endswith("/chat/callback"):
            person = self.__dict__.get("_began", person)
        if person is None:
            return None
"""),
    host("organization-of-the-path", "A backend belongs to the organization of the agent that it addresses.", "METHODS-2", "a backend of another organization at the path of an agent of the other one", 'organization_id=found["organization_id"],', 'organization_id=getattr(await self.agent(request.path.split("/")[3]), "organization_id", found["organization_id"]),'),
    host("secrets-of-all", "A node is looked up by flow and node, whoever's they are.", "METHODS-2", "for another organization, and a flow and node of the first one", "if flow is None or flow.organization_id != organization_id:", "if flow is None:"),
    host("experiences-by-id", "A logic action is looked up by the experience's id alone.", "METHODS-3", "for an agent that does not exist", "            agent_id=ref.agent_id,\n            organization_id=ref.organization_id,\n", ""),
    # What authors see and save
    driver("fixed-palette", "The editor offers a fixed list of node types.", "EDIT-1 LOAD-2", "the palette must offer 'probe' once", 'data: list[dict[str, Any]] = answer.raise_for_status().json()["data"]', 'data = [each for each in answer.json()["data"] if each["name"] in {"webhook", "chat_message"}]'),
    driver("own-preview", "The preview shows the config beside what the plugin gave, secrets included.", "SAVING-3", "the preview shows a secret that the plugin has masked", 'data: dict[str, Any] = answer.raise_for_status().json()["data"]', 'data = {**answer.json()["data"], "config": node.config}'),
    Fault("slash-in-an-id", "The ids of experiences hold a slash.", "HTTP-12", "must not hold a slash", (("testing.py", "id=experience.id,", 'id=f"{experience.id}/1",'), ("testing.py", "        return {}\n", '        return {each.id: f"{each.id}/1" for each in world.experiences}\n'))),
    driver("ids-made-anew", "Saving a flow makes its nodes anew.", "SAVING-2", "has other node ids than before", "stored = msgspec.to_builtins(_stored(flow))", 'stored = msgspec.to_builtins(_stored(flow))\n        for each in stored["items"]:\n            each["id"] += uuid.uuid4().hex if each["kind"] == "action" else ""'),
    store("position-is-a-number", "The position of a run is a number, and counts in the newest version of its flow.", "PACING-11", "after its flow was edited, a run showed a step twice", "return None if row is None else _run(row)", 'return row and replace(_run(row), flow=await self.flow(row["flow_id"]))'),
    store("answers-early", "A flow is said to be open before its run can be found.", "MODEL-1", "open() answers before the host has kept the run", "return None if row is None else _run(row)", "return None if row is None or time.time() < row['opened_at'] + 0.9 else _run(row)"),
    store("global-cache", "Flows are cached in a dictionary that all hosts of the process share.", "LOAD-3", "one walks the other's flow", "row = await self.one(flows, id=flow_id)", "row = FLOWS.get(flow_id) or await self.one(flows, id=flow_id)\n        FLOWS[flow_id] = row"),
    # How requests and answers pass
    driver("unknown-prefix", "The routes are mounted below a path of which FlowActions.load was not told.", "EAGER-9 HTTP-2 TENANCY-2", "where the palette has it", APP, """self.prefix = "/plugins"

        async def mounted(scope, receive, send):
            if scope["type"] == "http":
                path = "/nothing" if scope["path"].startswith(PLUGIN) else scope["path"].removeprefix(self.prefix)
                scope = {**scope, "path": path, "raw_path": path.encode()}
            await made.app(scope, receive, send)

        self.app = mounted"""),
    app("bodies-again", "A middleware reads JSON bodies and hands on what it has read, written anew.", "HTTP-13 HTTP-7", " reached the plugin c", "around(made.app, body_of=written_anew)"),
    app("errors-again", "An error handler for the whole app writes every error in its own form.", "HTTP-13 HTTP-7", "", """around(made.app, rewrite=lambda _, answer: json_answer(answer.status, b'{"error": "Oops"}') if answer.status >= 400 else answer)"""),
    app("fails-at-unknown-paths", "A middleware looks a plugin's title up by the path, and fails for one that it does not know.", "HTTP-9", "which nobody has, is a server error", 'around(made.app, refuse=lambda asked: json_answer(500, b"KeyError") if re.match("/integrations(?!/(chat|health|nodes|probe|webhooks))", asked.path) else None)'),
    driver("errors-asked-again", "A proxy or middleware asks once more when the answer is that of a host that fails.", "HTTP-13", "did not reach the plugin once", APP, """
        async def repeating(scope, receive, send):
            if scope["type"] != "http" or scope["method"] == "GET":
                return await made.app(scope, receive, send)
            body = await whole(receive)
            answer = await answer_of(made.app, scope, body)
            await send_answer(send, await answer_of(made.app, scope, body) if answer.status in {502, 503, 504} else answer)

        self.app = repeating"""),
    host("transport-repeats", "The host's transport repeats requests that failed.", "EAGER-10", "one attempt of a delivery, which was answered 500, arrived as several requests", "self.database = store.engine", "self.database = store.engine\n        self.transport = Repeating()"),
    # The auth provider, and triggers
    host("auth-event-errors-swallowed", "Errors of auth_event are logged, and the event counts as handled.", "INBOUND-2", "the provider will not send it again", "    async def auth_event(self", """    async def auth_event(self, event):
        with suppress(Exception):
            await self._handle(event)

    async def _handle(self"""),
    app("auth-events-by-a-route-of-its-own", "A route of the host takes the events, and believes everybody.", "INBOUND-1 INBOUND-2 INBOUND-4", "", 'around(made.app, refuse=lambda asked: json_answer(200, b"{}") if asked.path == "/webhooks/auth" else None)'),
    driver("url-of-the-request", "The webhook goes to the URL that the caller names.", "LOGIC-2", "reads the destination from the request", APP, """
        find, given = made.host.logic_action, ContextVar("given", default=None)

        async def logic_action(ref):
            found = await find(ref)
            return found and replace(found, url=given.get() or found.url)

        async def reading(scope, receive, send):
            if scope["type"] == "http" and scope["path"].endswith("/logic-webhook"):
                body = await whole(receive)
                given.set(json.loads(body).get("url"))
                receive = again(body)
            await made.app(scope, receive, send)

        made.host.logic_action, self.app = logic_action, reading"""),
    host("first-action-always", "The action's index is not looked at.", "LOGIC-7 METHODS-3", "for the second action of a row", "actions[ref.action_index], LogicAction) if ref.action_index < len(actions)", "actions[0], LogicAction) if actions"),
    host("action-headers-dropped", "The action's headers are left out.", "LOGIC-1 LOGIC-7 METHODS-3", "the action's header is missing", "actions[ref.action_index], LogicAction)", '{**actions[ref.action_index], "headers": []}, LogicAction)'),
    # Walks
    walker("always-eager", "Every node runs when it is reached, in client-paced flows, too.", "MODEL-2", "ran when the client-paced flow was opened", "walk = msgspec.structs.replace(walk, pacing=Deferred(_step_after(flow, index)))", "pass"),
    walker("runs-in-the-background", "The walk goes on, and answers, while nodes still run.", "MODEL-1", "the host starts reach() in the background", "        return await self._walk_through(run)\n", """
        async def later():
            await asyncio.sleep(0.2)
            await self._walk_through(run)

        self.later = asyncio.create_task(later())
        return Turn(run.session, None, [_step(item) for item in flow.steps], done=True)
"""),
    walker("user-id-wrong", "The walk has the run's id as the user's.", "EAGER-2 MODEL-1", "userId of the walk is not the run's", "user_id=run.user_id", "user_id=run.id"),
    walker("run-id-is-the-flows", "The run's id is the flow's.", "MODEL-1", "", "run_id=run.id", "run_id=run.flow.id"),
    walker("previous-step", "A node is recorded against the step before it.", "MODEL-2 PACING-12", "Deferred names another step", "for item in flow.items[index:] if", "for item in flow.items[index::-1] if"),
    walker("clients-step-trusted", "The run goes on from the step that the client names.", "PACING-6", "a client at step a that says it is at step c went on from there", "        current = _current(run)\n", """        ids = [step["id"] for step in run.flow.steps]
        if from_step in ids and not run.done:
            await self._store.move(run, position=ids.index(from_step), done=False, halted=False)
            run = await self._store.run(run.session) or run
        current = _current(run)
"""),
    walker("running-is-done", "A next beside one that still runs nodes moves on.", "PACING-5", "`running` is taken for `done`", 'if advanced.state == "running":', "if False:"),
    walker("halt-ignored", "A halt does not stop a run.", "EAGER-9 MODEL-3", "behind one that halts", "if result.halt:", "if False:"),
    walker("items-leaked", "The client gets the whole flow, with the configs of its nodes.", "EAGER-5", "the end user's client got the webhook's signing secret", "            walk = _walk(run)\n", '            shown.append(Step("note", "Note", str(item)))\n            walk = _walk(run)\n'),
    host("secret-cached", "A node's secret is read once.", "EAGER-6 METHODS-1 METHODS-3", "a webhook is not signed with the secret that its node has now", "    async def auth_event(self", """    async def signing_secret(self, origin):
        known = self.__dict__.setdefault("_known", {})
        if origin not in known:
            known[origin] = await super().signing_secret(origin)
        return known[origin]

    async def auth_event(self"""),
    # Loops, branches and sub-flows
    flask("visit-counted-in-memory", "Passages are counted in memory.", "LOOPS-7", "visit is counted in memory", "        item, visit, _ = place\n", """        item, visit, _ = place
        counts = store.__dict__.setdefault("_counts", Counter())
        counts[run["id"], item["id"]] += 1
        visit = str(counts[run["id"], item["id"]])
"""),
    flask("innermost-round-only", "A passage is the round of the innermost loop.", "MODEL-5", "visit counts the rounds of the innermost loop only", 'passage.rstrip("/")', 'passage.rstrip("/").rpartition("/")[2]'),
    Fault("runs-counted-in-memory", "Run ids are counted in memory.", "TASK-3", "run ids are counted in memory", (
        ("testing.py", "run_id=secrets.token_urlsafe(24)", 'run_id=str(next(store.__dict__.setdefault("_runs", count(1))))'),
        ("testing.py", '"id": walk.run_id,', '"id": secrets.token_urlsafe(24),'),
    ), "flask"),
    # Lifespan and tasks
    Fault("two-sets-of-tasks", "The walk and the routes have a FlowActions each, and both are opened.", "LOAD-1 TASK-1", "a process of the host runs 2 lifespans of the plugins", (("app.py", "actions.lifespan]", "actions.lifespan, FlowActions.load(ReferenceHost(settings, host.store)).lifespan]"),)),
    host("sleeps-in-node", "A node is looked up with a library that is not asynchronous.", "TASK-5", "Host.node keeps the event loop for 0.2 s at each call", "        flow = await self.store.flow(flow_id)\n", "        time.sleep(0.15)\n        flow = await self.store.flow(flow_id)\n"),
    Fault("lifespan-never-closed", "The lifespan is entered by hand and never left.", "TASK-3", "their lifespans were not closed", (("app.py", "[own_lifespan, actions.lifespan]", "[own_lifespan]"), ("app.py", "        async with host.store.open():\n", "        async with host.store.open():\n            NEVER_LEFT.append(actions.lifespan())\n            await NEVER_LEFT[-1].__aenter__()\n"))),
    driver("gives-up-after-a-crash", "The host is unhealthy once a background task has crashed.", "TASK-2", "after a plugin's task has crashed, requests are not answered any more", APP, """
        crashed, thread = [], threading.get_ident()

        class Alarm(logging.Handler):
            def emit(self, record):
                if record.thread == thread and "background task" in record.getMessage():
                    crashed.append(record)

        async def alarmed(scope, receive, send):
            if scope["type"] == "http" and crashed:
                await send_answer(send, Answer(503, [], b"unhealthy"))
            else:
                await made.app(scope, receive, send)

        logging.getLogger().addHandler(Alarm())
        self.app = alarmed"""),
    host("needs-chat", "The host reads a setting of chat itself.", "TASK-4", "CHAT_CLIENT_ID", "self.settings = settings", 'self.settings = settings\n        settings["CHAT_CLIENT_ID"]'),
    # What outlives a process, and several of them
    driver("new-encryption-key", "The encryption key is made when the process starts.", "DURABILITY-1", "each start makes a new encryption key", "create_app(env.settings,", 'create_app({**env.settings, **({"FLOWACTIONS_ENCRYPTION_KEYS": base64.b64encode(os.urandom(32)).decode()} if env.incarnation > 1 else {})},'),
    driver("sessions-written-at-stop", "Which sessions there are is written when the host stops.", "DURABILITY-2", "what the host has written is kept back until it stops", APP, """self.app = made.app
        file = env.state_dir / "sessions"
        sessions = set(file.read_text().split()) if file.exists() else set()
        start, find = self._store.start_run, self._store.run

        async def start_run(run, connection):
            sessions.add(run.session)
            await start(run, connection)

        async def run(session):
            return await find(session) if session in sessions else None

        @asynccontextmanager
        async def lifespan(_):
            yield
            file.write_text(" ".join(sessions))

        self._store.start_run, self._store.run = start_run, run
        made.app._lifespan_managers.append(lifespan)"""),
    Fault("order-dropped", "A walk gets the fields of a node that the host knew when it was written.", "EAGER-11", "to be sent one after another, were not", (("walker.py", 'config=item["config"])\n', 'config={key: value for key, value in item["config"].items() if key != "webhookInOrder"})\n'),)),
    Fault("sends-before-it-commits", "Nodes are reached outside of the transaction that keeps the run.", "DURABILITY-3", "but its webhook was sent", (("walker.py", "            await self._store.add_results(run.id, [result], transaction)\n", ""), ("walker.py", "        async with self._store.transaction() as connection:\n            await self._store.start_run(run, connection)\n", """        turn = None if paced else await self._walk_through(run)
        async with self._store.transaction() as connection:
            await self._store.start_run(run, connection)
            if turn:
                return turn
"""))),
    walker("rolls-back-for-a-plugin", "A plugin's failure is taken for one of the host.", "HALT-1", "rolls back or answers an error", "            result = await self._actions.reach(walk, node, transaction)\n", """            result = await self._actions.reach(walk, node, transaction)
            if result.reason == "plugin_error":
                raise RuntimeError(result.message)
"""),
    host("unsigned-during-an-outage", "A secret that cannot be read is none.", "METHODS-5", "Host.signing_secret answers None for a node while the host's database fails", "    async def auth_event(self", """    async def signing_secret(self, origin):
        with suppress(RuntimeError):
            return await super().signing_secret(origin)

    async def auth_event(self"""),
    Fault("tasks-in-the-first-process", "Each process has a database of its own, and only the first runs tasks.", "SCALE-1", "not all of 200 webhooks that were queued in two processes have arrived", (("testing.py", "env.settings, env.database_url", 'env.settings, env.state_dir / f"{env.incarnation}.db"'), ("testing.py", APP, """self.app = made.app
        if env.incarnation > 1:
            made.app._lifespan_managers.remove(made.actions.lifespan)
            made.app._lifespan_managers.append(lambda _: made.actions.lifespan(tasks=False))"""))),
    walker("locks-in-memory", "Who else runs a step is known by a lock in memory, and 'running' is taken for 'done'.", "SCALE-2", "a caller was let past a node that another process still runs", "        advanced = await self._actions.advance(_walk(run), reached)\n", """        async with self.__dict__.setdefault("_locks", {}).setdefault(run.id, asyncio.Lock()):
            advanced = await self._actions.advance(_walk(run), reached)
            advanced = replace(advanced, state="done") if advanced.state == "running" else advanced
"""),
    host("everybody-operates", "Everybody who may change something is an operator.", "TENANCY-1", "who is no operator, shows a delivery of ", '        if person is None or await self.store.one(tables.operators, id=person["id"]) is None:', '        if person is None or not person["may_change"]:'),
    host("organization-of-a-header", "A header names the organization, and nobody looks who its members are.", "METHODS-2", "names another one by the header x-organization-id", '            organization_id=person["organization_id"],\n            user_id', '            organization_id=request.headers.get("x-organization-id", person["organization_id"]),\n            user_id'),
    host("principal-in-a-global", "Who calls is kept in a global.", "METHODS-2 METHODS-4", "while others are asked at the same moment", "        person = await self._person(request)\n        if person is None:\n            return None\n        return DashboardPrincipal(", "        FLOWS['person'] = await self._person(request)\n        await asyncio.sleep(0.2)\n        person = FLOWS['person']\n        if person is None:\n            return None\n        return DashboardPrincipal("),
    host("backend-in-a-global", "Which backend calls is kept in a global.", "METHODS-2 METHODS-4", "while others are asked at the same moment", '        found = await self.store.token("api", _bearer(request))\n', '        FLOWS["api"] = await self.store.token("api", _bearer(request))\n        await asyncio.sleep(0.2)\n        found = FLOWS["api"]\n'),
    host("nobody-during-an-outage", "Who calls is nobody while the database fails.", "METHODS-5", "Host.dashboard_principal answers None for a person while the host's database fails", "        person = await self._person(request)\n        if person is None:\n            return None\n        return DashboardPrincipal(", "        try:\n            person = await self._person(request)\n        except RuntimeError:\n            person = None\n        if person is None:\n            return None\n        return DashboardPrincipal("),
    host("rows-of-any-experience", "A row is found by its id, in whichever experience of the agent has it.", "METHODS-3", "for the first action of a row", "        experience = await self.store.one(\n            tables.experiences,\n            id=ref.experience_id,\n", "        experience = await self.store.one(\n            tables.experiences,\n"),
    flask("secrets-not-saved", "A save drops the secrets of nodes that stand in no loop and no branch.", "SAVING-2", "probeSecret is missing", '"items": told["items"]}', '"items": [{**item, "config": {key: value for key, value in item["config"].items() if not key.endswith("Secret")}} if item["kind"] == "action" else item for item in told["items"]]}'),
    walker("commit-only-logged", "An error of the commit is logged, and the run is confirmed.", "DURABILITY-3", "confirmed a run that the host has not kept", """        async with self._store.transaction() as connection:
            await self._store.start_run(run, connection)
            if paced:
                # Recording is nothing but SQL: the run and what waits in it are written together, or not at all.
                return await self._walk_through(run, connection)
""", """        try:
            async with self._store.transaction() as connection:
                await self._store.start_run(run, connection)
                if paced:
                    return await self._walk_through(run, connection)
        except RuntimeError:
            logging.getLogger(__name__).exception("commit")
"""),
    host("cancelled-is-nothing", "A call that was cancelled answers that nothing exists.", "METHODS-4", "Host.agent answers None for an agent when its call is cancelled", "        row = await self.store.one(tables.agents, id=agent_id)\n", "        try:\n            await asyncio.sleep(0)\n            row = await self.store.one(tables.agents, id=agent_id)\n        except asyncio.CancelledError:\n            row = None\n"),
    host("lock-kept", "A lock that a call holds is kept when the call is cancelled.", "METHODS-4", "", "        row = await self.store.one(tables.agents, id=agent_id)\n", "        lock = self.__dict__.setdefault('_lock', asyncio.Lock())\n        await asyncio.wait_for(lock.acquire(), 5)\n        row = await self.store.one(tables.agents, id=agent_id)\n        lock.release()\n"),
    host("actions-during-an-outage", "No action exists while the database fails.", "METHODS-5", "Host.logic_action answers None for an action while", "        experience = await self.store.one(\n            tables.experiences,\n            id=ref.experience_id,\n            agent_id=ref.agent_id,\n            organization_id=ref.organization_id,\n        )\n", "        experience = None\n        with suppress(RuntimeError):\n            experience = await self.store.one(tables.experiences, id=ref.experience_id, agent_id=ref.agent_id, organization_id=ref.organization_id)\n"),
    driver("previews-for-strangers", "Whoever asks gets a preview for a flow, as its authors do.", "SAVING-6", "a preview for the flow of an organization was made for somebody who has not signed in", "        headers = self.headers(who)\n        edited", "        headers = self.headers(next(each for each in self._authors.values() if each.organization.endswith(flow.rpartition('-')[2])))\n        edited"),
    host("user-id", "user_id of a principal is the organization's.", "EAGER-9 METHODS-1 METHODS-2 METHODS-4", "for a person", 'user_id=person["id"],\n            user_name=person["name"],\n            may_change=person["may_change"],\n        )\n\n    async def operator', 'user_id=person["organization_id"],\n            user_name=person["name"],\n            may_change=person["may_change"],\n        )\n\n    async def operator'),
    host("agent-prefix", "An agent is found by the beginning of its id.", "METHODS-1 METHODS-2 METHODS-4", "for an agent's id in other capitals", "        row = await self.store.one(tables.agents, id=agent_id)\n", "        row = next((each for each in await self.store.find(tables.agents) if each['id'].lower().startswith(agent_id.lower())), None)\n"),
    driver("preview-saved", "The preview is of the node as it is saved.", "SAVING-3", "the preview is not what the plugin gave", '            "node": {"id": node.id, "type": node.type, "config": node.config},\n            "walk"', '            "node": next(({"id": each["id"], "type": each["type"], "config": each["config"]} for each in edited.json()["data"]["items"] if each["id"] == node.id), {"id": node.id, "type": node.type, "config": node.config}),\n            "walk"'),
    driver("warnings-dropped", "Warnings are not shown.", "SAVING-1", "the author is not shown the problem 'probe_warning' of the node warned", "        return problems\n", "        return [each for each in problems if each['severity'] == 'error']\n"),
    host("ttl", "Nodes are cached for a second.", "METHODS-1", "for a node, of what was changed a moment ago", "        flow = await self.store.flow(flow_id)\n", "        cached = self.__dict__.setdefault('_flows', {})\n        at, flow = cached.get(flow_id, (0, None))\n        if time.time() - at > 1:\n            flow = await self.store.flow(flow_id)\n            cached[flow_id] = (time.time(), flow)\n"),
    host("readers-operate", "People who may only look are operators.", "METHODS-1 METHODS-2 METHODS-4", "for a person who may only look", '        if person is None or await self.store.one(tables.operators, id=person["id"]) is None:', '        if person is None or (person["may_change"] and await self.store.one(tables.operators, id=person["id"]) is None):'),
    host("type-by-text", "An agent uses a type if its flows hold the word.", "METHODS-1 METHODS-2 METHODS-4", "for a type that no flow uses", 'if any(item.get("type") == node_type for item in flow["items"])', "if node_type in json.dumps(flow['items'])"),
    walker("leaves-a-mark", "A run is marked as busy while it goes on, and a process that is killed leaves the mark.", "SCALE-4", "nobody removes it", "    async def next(self", """    async def next(self, run, from_step):
        mark = Path(self._store.engine.url.database).parent / f"busy-{run.id}"
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            return _turn(run)
        try:
            return await self._next(run, from_step)
        finally:
            mark.unlink()

    async def _next(self"""),
]  # fmt: skip
"""Further ones, each for a check that the others do not show to find anything."""


DRAWN_FLOWS = [
    Fault("runs-nodes-itself", "The host runs the nodes before a step with each next, in place of advance().", "PACING-4", "a node did not run once with four next at the same time", (
        ("walker.py", "            walk = _walk(run)\n", "            walk = _walk(run)\n            if paced:\n                continue\n"),
        ("walker.py", "        advanced = await self._actions.advance(_walk(run), reached)\n", """        places = [number for number, item in enumerate(run.flow.items) if item["kind"] == "step"]
        begin, end = places[position - 1] + 1 if position else 0, ([*places, None])[position]
        for item in run.flow.items[begin:end]:
            node = Node(id=item["id"], type=item["type"], config=item["config"])
            await self._actions.reach(replace(_walk(run), visit=uuid4().hex), node)
        advanced = await self._actions.advance(_walk(run), reached)
"""),
    )),
    Fault("sub-flow-id", "The nodes of a sub-flow have its own flow_id.", "MODEL-5", "flowId of the walk is not the run's, but the sub-flow's", (
        ("testing.py", """            yield from places(find, sub["items"] if sub else [], f"{passage}{item['id']}/")""", """            for inner, *rest in places(find, sub["items"] if sub else [], f"{passage}{item['id']}/"):
                yield {"of": item["flow"], **inner}, *rest"""),
        ("testing.py", "visit=visit,", 'visit=visit, flow_id=item.get("of", run["walk"]["flowId"]),'),
    ), "flask"),
    Fault("node-one-deep", "A node is looked for in a flow and the sub-flows directly in it.", "METHODS-1 MODEL-5", "Host.node looks only at the flow and the sub-flows directly in it", (
        ("testing.py", "flow_id: str, node_id: str) -> Node | None:\n        flow =", "flow_id: str, node_id: str, deep=False) -> Node | None:\n        flow ="),
        ("testing.py", 'item["kind"] == "subflow":\n                found', 'item["kind"] == "subflow" and not deep:\n                found'),
        ("testing.py", 'item["flow"], node_id)', 'item["flow"], node_id, True)'),
    ), "flask"),
    flask("halt-ignored-below", "A halt in a sub-flow or loop within another one is ignored.", "MODEL-6", "a halt ends the loop or the sub-flow", "reach(run, place, Eager()):", 'reach(run, place, Eager()) and "/" not in place[1]:'),
    flask("steps-of-each-round", "The steps of all rounds have the same ids.", "MODEL-5", "the step's id in the flow is given for each round", """f"{passage}{item['id']}" if""", 'item["id"] if'),
    flask("state-of-the-flow", "What is known of a run is kept for its flow: the second user is taken for the first.", "MODEL-2 MODEL-4", "userId of the walk is not the run's", 'convert(run["walk"], Walk)', 'convert({**FLOWS.setdefault(("known", run["walk"]["flowId"]), run["walk"]), "runId": run["walk"]["runId"]}, Walk)'),
    config("config-by-node-id", "Of two flows with the same node ids, one runs with the configs of the other.", "MODEL-1", "nodes are looked up by their ids alone", 'self.__dict__.setdefault("_configs", {}).setdefault(item["id"], item["config"])'),
    walker("skipped-ends", "A node that was skipped ends the run.", "HALT-1 MODEL-3", "does not continue after a node with the status 'skipped'", "            if result.halt:", '            if result.halt or result.status == "skipped":'),
    walker("end-lost", "Nodes behind the last step of a client-paced flow are lost.", "MODEL-2", "with the next from the last step", "            walk = _walk(run)\n", "            walk = _walk(run)\n            if paced and _step_after(flow, index) is None:\n                continue\n"),
    walker("one-node-each-step", "Of several nodes before a step, only the last one is recorded.", "MODEL-2", "of several nodes one after another", "            walk = _walk(run)\n", '            walk = _walk(run)\n            if paced and flow.items[index + 1 : index + 2] and flow.items[index + 1]["kind"] == "action":\n                continue\n'),
]  # fmt: skip
"""Of flows with loops, branches, sub-flows and ids that repeat: those that the checks with a model must find in each run."""


ENGINEERS = [
    host("header-unpacked", "A header without a blank is unpacked as two words.", "METHODS-1", "Host.api_principal raises ValueError for the credential", '        found = await self.store.token("api", _bearer(request))\n', '        _, _ = request.headers.get("authorization", "Bearer none").split(" ")\n        found = await self.store.token("api", _bearer(request))\n'),
    host("secrets-of-nodes-only", "An own signing_secret knows flow nodes only.", "METHODS-3 LOGIC-1", "Host.signing_secret answers None for the first action of a row", "    async def auth_event(self", """    async def signing_secret(self, origin):
        return await super().signing_secret(origin) if hasattr(origin, "flow_id") else None

    async def auth_event(self"""),
    flask("sub-flow-cached", "What a flow holds is cached until this flow is saved, also if one of its sub-flows is.", "METHODS-1", "deep in the flow", "        return await asyncio.to_thread(self._node, organization_id, flow_id, node_id)\n", """        known = self.__dict__.setdefault("_nodes", {})
        key = organization_id, flow_id, node_id, str(await self._get("flow", flow_id))
        if key not in known:
            known[key] = await asyncio.to_thread(self._node, organization_id, flow_id, node_id)
        return known[key]
"""),
    flask("sub-flow-once", "A guard against cycles knows all sub-flows of a walk, and not only those around.", "MODEL-5", "entered before is not entered again", 'partial(store.get, "flow")', 'lambda id_, seen=set(): None if id_ in seen or seen.add(id_) else store.get("flow", id_)'),
    walker("reached-again", "A node whose result is failed is reached again.", "EAGER-5 MODEL-1", "was reached twice when the flow was opened", "            result = await self._actions.reach(walk, node, transaction)\n", """            result = await self._actions.reach(walk, node, transaction)
            if result.status == "failed":
                result = await self._actions.reach(walk, node, transaction)
"""),
    api("defaults-saved", "A save fills in the defaults of a type's schema.", "SAVING-2", "a save fills in what an author left out", "items=data.items,", 'items=[{**item, "config": {**{key: value["default"] for key, value in actions.node_types[item["type"]].config_schema.get("properties", {}).items() if "default" in value}, **item["config"]}} if item["kind"] == "action" and item["type"] in actions.node_types else item for item in data.items],'),
    driver("preview-merged", "What the form has is laid over what is saved, and both are previewed.", "SAVING-3", "the preview is of another config than the author has in the form", '"config": node.config},\n            "walk"', '"config": {**next((each["config"] for each in edited.json()["data"]["items"] if each["id"] == node.id), {}), **node.config}},\n            "walk"'),
    walker("double-click", "An opening like one of the last minute gives that one's run.", "MODEL-1", "of another run, of the same user and content", '        paced = flow.kind == "client_paced"\n        begins', """        clicks = self.__dict__.setdefault("_clicks", {})
        key = flow.id, user_id, content
        if key in clicks:
            return clicks[key]
        clicks[key] = await self._open(flow, user_id, content)
        return clicks[key]

    async def _open(self, flow, user_id, content):
        paced = flow.kind == "client_paced"
        begins"""),
    walker("first-agent", "The walk has the first agent of the organization.", "MODEL-1", "agentId of the walk is not the run's: at", "agent_id=run.flow.agent_id,", 'agent_id=run.flow.agent_id.replace("agent-", "a-first-"),'),
    host("agents-joined", "An agent is answered for each of its flows.", "METHODS-1", "once for each of its flows", '        return [Agent(**row) for row in own if row["id"] in used]\n', '        return [Agent(**row) for row in own if row["id"] in used for _ in "ab"]\n'),
    host("agents-cached", "Which agents use a type is looked up once.", "METHODS-1", "for the type 'webhook', of what was changed a moment ago", "    async def agents_using(self, organization_id: str, node_type: str) -> Sequence[Agent]:", """    async def agents_using(self, *asked):
        known = self.__dict__.setdefault("_using", {})
        if asked not in known:
            known[asked] = await self._agents_using(*asked)
        return known[asked]

    async def _agents_using(self, organization_id: str, node_type: str) -> Sequence[Agent]:"""),
    api("checked-for-another-agent", "A draft is checked for another agent than the one whose flow is edited.", "SAVING-1", "checked for another agent", "agent_id=flow.agent_id, node=node)", 'agent_id=flow.agent_id.replace("agent-", "a-first-"), node=node)'),
    driver("gives-up", "Requests are ended after eight seconds.", "HTTP-13", "after 12 seconds, is answered 504", APP, """
        async def limited(scope, receive, send):
            if scope["type"] != "http":
                return await made.app(scope, receive, send)
            try:
                answer = await asyncio.wait_for(answer_of(made.app, scope, await whole(receive)), 8)
            except TimeoutError:
                answer = Answer(504, [], b"timeout")
            await send_answer(send, answer)

        self.app = limited"""),
]  # fmt: skip
"""What an engineer wrote down who had read the contract, and not the checks."""


FAULTS = [*INVENTED, *DRAWN, *ALTERED, *DRAWN_FLOWS, *ENGINEERS]
