"""Sixty faulty hosts: each is a healthy host with a small patch of its source, written down before the checks that find them.

Forty are invented, of different kinds. Twenty are changes of one line drawn by a seed: `drawn` draws them again, or others.
"""

from __future__ import annotations

import importlib
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from flowactions_conformance.kit.under_test import Factory
from tests.conformance.middleware import Answer, around

ROOT = Path(__file__).parents[2]
HOSTS = {
    "reference": (
        "flowactions_conformance.reference_host",
        ROOT / "conformance/flowactions_conformance/reference_host",
    ),
    "engine": ("tests.conformance.hosts.engine", ROOT / "tests/conformance/hosts/engine"),
}
SEED = 20261127
PRELUDE = """
import asyncio, json, re, unicodedata, uuid
from msgspec.structs import replace
from tests.conformance.faulty import texts, keys, answered, without_header
from tests.conformance.middleware import Answer, around, json_answer
"""
APP = "self.app = made.app"
CONFIG = 'config=item["config"])\n            result'


class Fault(NamedTuple):
    """A host that breaks one promise.

    Attributes:
        name: of the host, and in test ids.
        breaks: the promise that it breaks, in one sentence; empty: it breaks none, and ``why`` says why not.
        host: the healthy host that is patched.
        file: its module.
        old: text of that module.
        new: the text that replaces it.
        why: why the change breaks no promise.
    """

    name: str
    breaks: str
    host: str
    file: str
    old: str
    new: str
    why: str = ""


def texts(change: Callable[[str], Any], value: Any) -> Any:
    """Change each text in a JSON value."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [texts(change, each) for each in value]
    return {key: texts(change, each) for key, each in value.items()} if isinstance(value, dict) else value


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


def config(name: str, breaks: str, change: str) -> Fault:
    """Return a host that changes the config of a node on its way to the plugin."""
    return Fault(name, breaks, "reference", "walker.py", CONFIG, CONFIG.replace('item["config"]', change))


def opening(name: str, breaks: str, user: str = "data.user_id", content: str = "data.content") -> Fault:
    """Return a host that changes user or content when a flow is opened."""
    call = "walker.open(flow, data.user_id, data.content)"
    return Fault(name, breaks, "reference", "api.py", call, f"walker.open(flow, {user}, {content})")


def app(name: str, breaks: str, change: str) -> Fault:
    """Return a host whose app is wrapped."""
    return Fault(name, breaks, "reference", "testing.py", APP, f"self.app = {change}")


def of(host: str, file: str) -> Callable[[str, str, str, str], Fault]:
    """Return what makes faults of a module of a host."""
    return lambda name, breaks, old, new: Fault(name, breaks, host, file, old, new)


host, walker, store, api = (of("reference", f"{name}.py") for name in ("host", "walker", "store", "api"))

INVENTED = [
    # Values
    opening("user-number", "A user '007' becomes '7'.", user="str(int(data.user_id)) if data.user_id.isdigit() else data.user_id"),
    opening("user-lower", "A user's capitals are lost.", user="data.user_id.lower()"),
    opening("user-named", "A user without an id gets one.", user='data.user_id or "anonymous"'),
    opening("content-trimmed", "White space at the ends of the content is lost.", content="data.content.strip()"),
    opening("content-normal", "The content arrives in another normal form of Unicode.", content='unicodedata.normalize("NFC", data.content)'),
    opening("content-short", "A long content is cut.", content="data.content[:1000]"),
    opening("content-lines", "Line ends of the content change.", content='data.content.replace("\\r\\n", "\\n")'),
    opening("content-basic", "Characters beyond the basic plane are lost.", content='re.sub("[^\\u0000-\\uffff]", "?", data.content)'),
    opening("content-json", "A content that is JSON is written anew.", content='json.dumps(json.loads(data.content)) if data.content[:1] in ("{", "[") else data.content'),
    config("key-dots", "A key 'a.b' of a config becomes 'a_b'.", 'keys(lambda key: key.replace(".", "_"), item["config"])'),
    config("key-lower", "Keys of a config that begin with a capital do not any more.", 'keys(lambda key: key[:1].lower() + key[1:], item["config"])'),
    config("time-form", "A time in a config changes its form.", 'texts(lambda text: re.sub(r"(\\d\\d:\\d\\d:\\d\\d)Z", r"\\1+00:00", text), item["config"])'),
    config("text-typed", "A text of a config that looks like a number or truth becomes one.", 'texts(lambda text: {"true": True, "false": False, "null": None}.get(text, int(text) if text.isdigit() else text), item["config"])'),
    config("number-float", "A large number in a config loses its last digit.", 'json.loads(json.dumps(item["config"]), parse_int=lambda digits: int(float(digits)))'),
    config("empty-dropped", "Empty values below the first level of a config are dropped.", 'json.loads(json.dumps(item["config"]), object_hook=lambda held: {k: v for k, v in held.items() if v not in ({}, [])})'),
    config("list-unwrapped", "A list of one becomes its element.", 'json.loads(json.dumps({k: v[0] if isinstance(v, list) and len(v) == 1 and isinstance(v[0], str) else v for k, v in item["config"].items()}))'),
    walker("flow-lower", "A flow's id loses its capitals on the way to the plugin.", "flow_id=run.flow.id", "flow_id=run.flow.id.lower()"),
    host("node-folded", "Nodes whose ids differ in case only are taken for each other.", 'item["id"] == node_id', 'item["id"].lower() == node_id.lower()'),
    api("occurred-earlier", "A trigger is said to have fired an hour before it did.", "datetime.now(UTC)", "datetime.fromtimestamp(datetime.now(UTC).timestamp() - 3600, UTC)"),
    api("firing-again", "Each firing of a trigger has the same id.", "firing_id=uuid4().hex, occurred_at=datetime.now(UTC)", 'firing_id=f"{experience_id}-{row_id}", occurred_at=datetime.fromtimestamp(1790000000, UTC)'),
    # Who may do what
    Fault("stranger-saves", "An author of another organization can save over a flow.", "reference", "api.py", "if flow is None or flow.organization_id != person.organization_id", "if flow is None"),
    api("reader-saves", "A reader can save a flow and fire a trigger.", "if not principal.may_change:", "if False:"),
    host("right-kept", "Who may change something once may do so for ever.", '        return await self.store.one(tables.people, id=found["person_id"]) if found else None', '        kept = self.__dict__.setdefault("_kept", {})\n        if token not in kept and found:\n            kept[token] = await self.store.one(tables.people, id=found["person_id"])\n        return kept.get(token) if found else None'),
    host("agents-kept", "A backend keeps the agents that were taken away from it.", '        agent_ids = found["agent_ids"]', '        agent_ids = self.__dict__.setdefault("_agents", {}).setdefault(found["id"], found["agent_ids"])'),
    host("no-agent-is-all", "A backend without agents may address all of them.", "all_agents=agent_ids is None", "all_agents=not agent_ids"),
    host("question-ignored", "A trigger group fires for an answer to another question.", "if question != ref.question_id:", "if False:"),
    # What passes through
    app("paths-lowered", "Paths are lower-cased.", 'around(made.app, scope_of=lambda scope: {**scope, "path": scope["path"].lower(), "raw_path": scope["path"].lower().encode()})'),
    app("slashes-merged", "Two slashes in a path become one.", 'around(made.app, scope_of=lambda scope: {**scope, "path": re.sub("/+", "/", scope["path"]), "raw_path": re.sub(b"/+", b"/", scope.get("raw_path") or b"")})'),
    app("cookie-attributes", "Cookies lose an attribute.", 'answered(made.app, lambda name, value: re.sub(b"(?i); *httponly", b"", value) if name == b"set-cookie" else value)'),
    app("header-dropped", "A header of an answer is dropped.", 'answered(made.app, lambda name, value: None if name == b"cache-control" else value)'),
    app("status-ok", "A status 201 or 202 becomes 200.", "around(made.app, rewrite=lambda _, answer: answer._replace(status=200 if answer.status in (201, 202) else answer.status))"),
    app("body-cut", "A long answer is cut.", "around(made.app, rewrite=lambda _, answer: answer._replace(body=answer.body[:65536]))"),
    app("asked-empty", "Request headers without a value are dropped.", 'around(made.app, scope_of=lambda scope: without_header(scope, lambda _, value: value == b""))'),
    # Structure and time
    Fault("rounds-ten", "The eleventh round of a loop is taken for the first.", "engine", "walks.py", ':{number}/"', ':{number % 10}/"'),
    Fault("subflow-old", "An edit of a sub-flow is not seen by new runs.", "engine", "walks.py", 'sub = await self.store.one("flow", tenant=tenant, id=item["flow"])', 'sub = self.__dict__.setdefault("_subs", {}).get((tenant, item["flow"])) or self.__dict__["_subs"].setdefault((tenant, item["flow"]), await self.store.one("flow", tenant=tenant, id=item["flow"]))'),
    Fault("nodes-on-top", "A node within a loop or branch is not found.", "engine", "app.py", 'every_item(flow.data["items"] if flow else [])', '(flow.data["items"] if flow else [])'),
    store("runs-mixed", "Of two runs of a user at once, the older goes on as the newer.", "row = await self.one(runs, session=session)", "row = await self.one(runs, session=session)\n        row = row and max(await self.find(runs, flow_id=row['flow_id'], user_id=row['user_id']), key=lambda each: each['opened_at'])"),
    Fault("user-shared", "Of two users who open a flow at once, one is taken for the other.", "reference", "walker.py", "            user_id=user_id,\n            content=content,\n            opened_at", "            user_id=(setattr(self, 'user', user_id), await asyncio.sleep(0.05), self.user)[2],\n            content=content,\n            opened_at"),
    Fault("halts-flow", "A run that was halted halts all later runs of its flow.", "reference", "walker.py", "            if result.halt:", "            halted = self.__dict__.setdefault('_halted', set())\n            if result.halt or flow.id in halted:\n                halted.add(flow.id)"),
    Fault("problems-first", "Only the first node with problems is told to the author.", "reference", "api.py", '            found += [{"nodeId"', '            found = found or [{"nodeId"'),
]  # fmt: skip

CHANGES = [
    (r" == ", " != "), (r" != ", " == "), (r" is None", " is not None"), (r" is not None", " is None"), (r"\bif not ", "if "),
    (r" and ", " or "), (r" or ", " and "), (r" < ", " <= "), (r" > ", " >= "), (r"\bTrue\b", "False"), (r"\bFalse\b", "True"),
    (r" \+ 1\b", " + 2"), (r"\b0\b", "1"), (r"^(\s+)await (?!.*[(\[{]$).*$", r"\1pass"), (r"=organization_id\b", "=None"),
    (r"\.lower\(\)", ".upper()"), (r'"(\w+)_id"', r'"\1"'), (r"\bin \{", "not in {"), (r"\[\*(\w+)", r"[*list(\1)[:1]"),
]  # fmt: skip
DRAWN_FROM = ("host.py", "walker.py", "store.py", "api.py", "app.py")


def drawn(seed: int, count: int) -> Iterator[Fault]:
    """Draw changes of one line of the reference host."""
    chosen = random.Random(seed)  # noqa: S311  to be drawn again
    seen: set[tuple[str, str]] = set()
    while len(seen) < count:
        file = chosen.choice(DRAWN_FROM)
        source = (HOSTS["reference"][1] / file).read_text()
        line = chosen.choice([line for line in source.splitlines() if line[:1] == " " and '"""' not in line])
        fitting = [
            (old, new) for old, new in CHANGES if re.search(old, line) and not line.lstrip().startswith("#")
        ]
        if not fitting or source.count(f"{line}\n") != 1 or (file, line) in seen:
            continue
        old, new = chosen.choice(fitting)
        changed = re.sub(old, new, line, count=1)
        if changed != line:
            seen.add((file, line))
            yield Fault(f"drawn-{len(seen):02}", "", "reference", file, f"{line}\n", f"{changed}\n")


@cache
def _package(fault: Fault) -> str:
    """Write the patched host as a package of its own, and return the package's name."""
    name, folder = HOSTS[fault.host]
    package = f"faulty_{fault.name.replace('-', '_')}"
    parent = Path(tempfile.mkdtemp(prefix="faulty-"))
    shutil.copytree(folder, parent / package, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (parent / package).glob("*.py"):
        source = path.read_text().replace(name, package)
        if path.name == fault.file:
            assert fault.old in source, fault.name
            # The middleware's last lines are the driver's; what is imported must follow the __future__ import.
            source = source.replace(fault.old, fault.new).replace(
                "from __future__ import annotations\n", f"from __future__ import annotations\n{PRELUDE}", 1
            )
        path.write_text(source)
    sys.path.append(str(parent))
    return package


def factory_of(fault: Fault) -> Factory:
    """Return the factory of a faulty host."""
    made: Factory = importlib.import_module(f"{_package(fault)}.testing").make_host
    name = fault.name.replace("-", "_")
    made.__module__, made.__qualname__ = __name__, name
    return made


def __getattr__(name: str) -> Any:
    """Find the factory of a fault by its name, for child processes."""
    for fault in FAULTS if "FAULTS" in globals() else []:
        if fault.name.replace("-", "_") == name:
            return factory_of(fault)
    raise AttributeError(name)


DRAWN = [
    Fault("drawn-01", "A trigger group fires for every answer but the right one.", "reference", "host.py", "            if question != ref.question_id:\n", "            if question == ref.question_id:\n", ""),
    Fault("drawn-02", "Nobody can sign in: every token is taken for an old one.", "reference", "store.py", '        return found if found is not None and found["expires_at"] > time.time() else None\n', '        return found if found is None and found["expires_at"] > time.time() else None\n', ""),
    Fault("drawn-03", "`agents_using` returns no agent of the organization.", "reference", "host.py", "        own = await self.store.find(tables.agents, organization_id=organization_id)\n", "        own = await self.store.find(tables.agents, organization_id=None)\n", ""),
    Fault("drawn-04", "A halt does not end a run that another request has moved; a run that is not halted moves twice.", "reference", "store.py", "        if not halted:\n", "        if halted:\n", ""),
    Fault("drawn-05", "No flow can be opened.", "reference", "api.py", "    if flow is None:\n", "    if flow is not None:\n", ""),
    Fault("drawn-06", "", "reference", "store.py", '        items: ``{"id", "kind": "step", "title", "text"}`` or ``{"id", "kind": "action", "type", "config", "name"?}``.\n', '        items: ``{"id", "kind": "step", "title", "text"}`` and ``{"id", "kind": "action", "type", "config", "name"?}``.\n', "a docstring"),
    Fault("drawn-07", "Flows have no organization: nothing can be seeded.", "reference", "store.py", '    Column("organization_id", String, index=True),\n', '    Column("organization", String, index=True),\n', ""),
    Fault("drawn-08", "A run that was halted when it was opened is said to go on.", "reference", "walker.py", "                return Turn(run.session, None, shown, done=True)\n", "                return Turn(run.session, None, shown, done=False)\n", ""),
    Fault("drawn-09", "A turn shows the step before the one that the run has reached.", "reference", "walker.py", "        return _turn(await self._store.run(run.session) or run)\n", "        return _turn(await self._store.run(run.session) and run)\n", ""),
    Fault("drawn-10", "", "reference", "store.py", "            return True\n", "            return False\n", "the answer of a save without a version, which only the sample data and the kit's own driver use, and neither reads"),
    Fault("drawn-11", "Seeding again fails: the tables have no primary key.", "reference", "store.py", '    return Table(name, metadata, Column("id", String, primary_key=True), *made)\n', '    return Table(name, metadata, Column("id", String, primary_key=False), *made)\n', ""),
    Fault("drawn-12", "", "reference", "walker.py", "        await self._store.add_results(run.id, advanced.results)\n", "        pass\n", "results of deferred nodes are kept for the author's own page, which the contract does not ask for"),
    Fault("drawn-13", "", "reference", "app.py", "                await load_sample(host.store, sample)\n", "                pass\n", "sample data are not loaded in a run of the kit"),
    Fault("drawn-14", "A run moves all other runs in place of itself.", "reference", "store.py", "        moved = update(runs).where(runs.c.id == run.id)\n", "        moved = update(runs).where(runs.c.id != run.id)\n", ""),
    Fault("drawn-15", "`agents_using` finds no flow, so no agent.", "reference", "host.py", "            for flow in await self.store.find(tables.flows, organization_id=organization_id)\n", "            for flow in await self.store.find(tables.flows, organization_id=None)\n", ""),
    Fault("drawn-16", "", "reference", "api.py", '    return Response(answer, status_code=201 if over is None else 200, headers={"ETag": _etag(flow)})\n', '    return Response(answer, status_code=201 if over is not None else 200, headers={"ETag": _etag(flow)})\n', "201 and 200 of the host's own route are swapped; the contract says nothing of it"),
    Fault("drawn-17", "", "reference", "walker.py", "            await self._store.add_results(run.id, [result], transaction)\n", "            pass\n", "results of nodes are kept for the author's own page, which the contract does not ask for"),
    Fault("drawn-18", "No flow with more or fewer than one item can be saved.", "reference", "api.py", '    if len({item["id"] for item in data.items}) != len(data.items):\n', '    if len({item["id"] for item in data.items}) == len(data.items):\n', ""),
    Fault("drawn-19", "A run begins at its second step, so the nodes before the first two steps are never run.", "reference", "walker.py", "            position=0 if begins_with_step else -1,\n", "            position=1 if begins_with_step else -1,\n", ""),
    Fault("drawn-20", "", "reference", "app.py", "        database: a SQLite file, or the URL of a database in the form of SQLAlchemy's asyncio drivers. The plugin\n", "        database: a SQLite file, and the URL of a database in the form of SQLAlchemy's asyncio drivers. The plugin\n", "a docstring"),
]  # fmt: skip
"""Drawn by `drawn(SEED, 20)`; those that break no promise say why."""

FAULTS = [*INVENTED, *DRAWN]
