"""What pages and code both say: they say the same. A part of ``python -m tests.docs.lint``.

Each function gives what is wrong, as sentences.
"""

from __future__ import annotations

import importlib
import json
import re
import tomllib
from collections.abc import Collection, Iterator
from contextlib import chdir
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

import click
import msgspec
import yaml
from litestar.routes import HTTPRoute

import flowactions_hookspecs
from flowactions_conformance.kit.registry import PROFILES, all_checks
from flowactions_hookspecs import FlowActions, FlowActionsError, Host, OutboundWebhook, spec
from flowactions_hookspecs import errors as of_contract
from flowactions_plugin import errors as of_plugin
from flowactions_plugin.chat.app import SCOPES
from flowactions_plugin.chat.events import REASONS
from flowactions_plugin.cli.commands import flowactions
from flowactions_plugin.http.problems import TITLES
from flowactions_plugin.insights.filters import ERRORS
from flowactions_plugin.nodes.chat_message import ChatMessageConfig
from flowactions_plugin.nodes.webhook import WebhookConfig
from flowactions_plugin.queue.rules import Timing
from flowactions_plugin.settings.model import READERS
from flowactions_plugin.storage import schema
from flowactions_plugin.telemetry.names import METRICS
from tests.docs import checks, log_events
from tests.docs import commands as of_commands
from tests.docs.environments import INSTALL, SENTENCE
from tests.docs.fences import FENCE, ROOT, blocks_of
from tests.docs.links import LINK
from tests.docs.tutorials import FOLDER as TUTORIALS
from tests.docs.tutorials import NAMES
from tests.support import SmallHost, app_with_routes

DOCS: Final = ROOT / "docs"
PLUGIN: Final = ROOT / "flowactions_plugin"
PAGES: Final = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def differ(what: str, said: Collection[object], known: Collection[object]) -> Iterator[str]:
    """Give what only one of the two names."""
    yield from (f"{what}: {each} is only on the page" for each in said if each not in known)
    yield from (f"{what}: {each} is not on the page" for each in known if each not in said)


def page(name: str, begins: str = "", ends: str = "\n## ") -> str:
    """Return a page below `docs`, or the part of it behind ``begins`` and before ``ends``."""
    text = (DOCS / name).read_text()
    return text.partition(begins)[2].partition(ends)[0] if begins else text


def coded(text: str) -> set[str]:
    """Give every word that a text sets in code type."""
    return set(re.findall(r"`([^`\n]+)`", text))


def rows(pattern: str, text: str) -> list[Any]:
    """Give what a pattern finds at the beginnings of lines."""
    return re.findall(pattern, text, re.MULTILINE)


# Architecture


def exists(name: str) -> bool:
    """Tell whether a dotted name leads to a module, function, class or method of the plugin or the contract."""
    parts = (name if name.startswith("flowactions_") else f"{PLUGIN.name}.{name}").split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


def of_architecture() -> Iterator[str]:
    """Names, paths and trees of the page of the architecture, and how many hops the way of a webhook has."""
    text = page("explanation/architecture.md")
    names = re.findall(r"`((?:[a-z_]+\.)+[A-Za-z_.]+)`", text + page("explanation/claiming.md"))
    for name in {*names}:
        if not name.endswith((".py", ".toml")) and not exists(name):
            yield f"architecture.md, claiming.md: nothing has the name {name}"
    for path in {*re.findall(r"`([a-z_/]+\.py|[a-z_]+/[a-z_/]*)`", text)}:
        if not (PLUGIN / path).exists():
            yield f"architecture.md: the plugin has no {path}"
    tree = "\n".join(re.findall(rf"```text\n{PLUGIN.name}/\n(.*?)```", text, re.DOTALL))
    folders = {each.parent.name for each in PLUGIN.glob("*/__init__.py")}
    yield from differ("architecture.md, folders", rows(r"^    (\w+)/", tree), folders)
    modules = {each.name for each in PLUGIN.glob("*.py")} - {"__init__.py"}
    yield from differ("architecture.md, modules", rows(r"^    (\w+\.py)", tree), modules)
    tops = {each.relative_to(ROOT).parts[0] for kind in ("py", "md") for each in ROOT.glob(f"*/**/*.{kind}")}
    tops = {each for each in tops if not each.startswith(".") and each not in {"build", "dist", "node_modules"}}
    shown = {each.partition("/")[0] for each in rows(r"^(\w[\w/]*)/$", text)}
    yield from differ("architecture.md, top", shown, tops)
    ways = [
        rows(r"^\d+\. `([\w.]+)`", page("explanation/architecture.md", f"## {way}\n"))
        for way in ("The way of a webhook", "The way of a chat message", "The way of an inbound event")
    ]
    of_webhook, of_chat, of_event = ways
    ends = of_webhook[0].endswith("FlowActions.reach") and of_webhook[-1].endswith("complete")
    if not (10 <= len(of_webhook) <= 15 and ends and of_chat and len(of_event) > 6):
        yield f"architecture.md: the ways have not the length or the ends that they should have: {ways}"


# References


def of_errors() -> Iterator[str]:
    """The trees above the errors name every class, with a meaning."""
    for module in (of_contract, of_plugin):
        drawn = re.findall(r"─ (\w+)(?:, a \w+,| {2,})\S", module.__doc__ or "")
        for name, kind in vars(module).items():
            is_error = isinstance(kind, type) and issubclass(kind, FlowActionsError)
            if is_error and kind is not FlowActionsError and name not in drawn:
                yield f"{module.__name__}: {name} is not in the tree above, or has no meaning there"


def of_reference() -> Iterator[str]:
    """Settings, problems, failures, routes, tables of the contract, decisions."""
    http = page("reference/http.md")
    settings = rows(r"^\| `([A-Z_]+)` \|", page("reference/settings.md"))
    if settings != list(READERS):
        yield f"settings.md has not the settings in their order: {settings}"
    problems = rows(r"^\| `([a-z_]+)` \| (\d{3}) \|", http)
    yield from differ("http.md, problems", problems, [(code, str(of[0])) for code, of in TITLES.items()])
    failures = rows(r"^\| `(\w+)` \| \w", page("reference/errors.md", "## Why an attempt failed"))
    if failures != ["http_4xx", *ERRORS]:
        yield f"errors.md has not the kinds of failures in their order: {failures}"
    code = (PLUGIN / "chat/oauth.py").read_text()
    reasons = {
        word for line in code.splitlines() if "OAuthFailed(" in line for word in re.findall(r'"(\w+)"', line)
    } - {"access_denied"}  # the provider's word for cancelled
    script = ROOT / "conformance/flowactions_conformance/reference_host/pages/connections.js"
    in_words = rows(r"^  (\w+): \"", script.read_text())
    for reason in reasons:
        if reason not in coded(http) or reason not in in_words:
            yield f"http.md or connections.js has not the reason {reason} of an install"
    with TemporaryDirectory() as folder, chdir(folder):  # where a development host writes its key
        app = app_with_routes(FlowActions.load(SmallHost()))
    mounted = {
        (method, re.sub(r"\{(\w+):str\}", r"{\1}", route.path))
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for handler in route.route_handlers
        for method in handler.http_methods
        if method != "OPTIONS"
    }
    yield from differ("http.md, routes", rows(r"^\| `(GET|POST|PUT|DELETE) ([^`]+)` \|", http), mounted)


def of_contract_pages() -> Iterator[str]:
    """Exports, hooks, members of the facade and of the host, fields of an own webhook, and decisions."""
    contract, both = page("reference/contract.md"), page("reference/contract.md") + page("reference/plugins.md")
    named = {re.split(r"[(.]", word)[0] for word in coded(both)}
    hooks = {name for name in vars(spec) if name.startswith("flowactions_")}
    members = {name for name in dir(FlowActions) if not name.startswith("_")} - {"load"}
    for name in {*flowactions_hookspecs.__all__, *hooks, *members} - named:
        yield f"contract.md, plugins.md: {name} is missing"
    host = dict(
        rows(r"^\| `(\w+).*\| ([^|]+) \|$", page("reference/contract.md", "## What a host provides", "\n### "))
    )
    of_host = {name for name in vars(Host) if not name.startswith("_")} | {*Host.__annotations__}
    yield from differ("contract.md, members of Host", host, of_host)
    required = {name for name, without in host.items() if without.startswith("required")}
    yield from differ("contract.md, required", required, {"settings", *Host.__abstractmethods__})
    part = contract.partition("### `enqueue`")[2].partition("\n### ")[0]
    cells = coded("".join(line.split("|")[1] for line in part.splitlines() if line.startswith("| ")))
    cells = {word for cell in cells for word in re.findall(r"\w+", cell)}
    for name in {*OutboundWebhook.__struct_fields__, "queued", "duplicate", "skipped"} - cells:
        yield f"contract.md, enqueue: {name} is missing"
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for name in hooks:
        if not re.search(rf"\b{name}\b|{name.removeprefix('flowactions_')}=", tests):
            yield f"no test implements {name}"
    decisions = re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", page("decisions/README.md"))
    if decisions != sorted(path.name for path in (DOCS / "decisions").glob("0*.md")):
        yield "the index of decisions has not each of them, in order"


def of_operation() -> Iterator[str]:
    """Tables, numbers of the rules, what is made of the code, and the forms' fields."""
    tables = rows(r"^\| `(flowactions_\w+)` \| \w", page("how-to/operate.md"))
    if tables != list(schema.metadata.tables):
        yield f"operate.md has not the tables in their order: {tables}"
    for said in (f"{Timing().lease_seconds:.0f} seconds", f"reclaimed {schema.QUARANTINE_AFTER} times"):
        if said not in page("explanation/claiming.md"):
            yield f"claiming.md does not say: {said}"
    if of_commands.PAGE.read_text() != of_commands.render():
        yield f"{of_commands.PAGE.name} is not what the code gives: {of_commands.COMMAND}"
    yield from differ("the table of checks, profiles", checks.ABOUT, PROFILES)
    for check in all_checks():
        if f"></a>{check.id} " not in checks.render() or not check.clause or not check.causes:
            yield f"{check.id} has no row, no clause or no causes"
    forms = {
        fields["properties"][name]["title"]
        for kind in (WebhookConfig, ChatMessageConfig)
        for fields in [msgspec.json.schema(kind)["$defs"][kind.__name__]]
        for name in fields["properties"]
    }
    for title in forms - {*re.findall(r"\*\*([^*]+)\*\*", page("how-to/flow-authors.md"))}:
        yield f"flow-authors.md does not explain {title}"


def of_log_events() -> Iterator[str]:
    """Each call that logs names its event, at one level."""
    calls = list(log_events.calls())
    if len(calls) < 80:
        yield "calls that log are not found"
    for call in calls:
        if not re.fullmatch(r"[a-z_]+\.[a-z_]+", call.event):
            yield f"{call.place}: {call.event} is no event's name"
        if {each.level for each in calls if each.event == call.event} != {call.level}:
            yield f"{call.place}: {call.event} is logged at several levels"


def of_observability() -> Iterator[str]:
    """Metrics, the dashboard and alert rules."""
    panels = json.loads(page("observability/dashboard.json"))["panels"]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    if not len({panel["id"] for panel in panels}) == len(places) == len(panels):
        yield "panels of the dashboard share an id or a place"
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    groups = yaml.safe_load(page("observability/alerts.yaml"))["groups"]
    for query in [*queries, *(rule["expr"] for group in groups for rule in group["rules"])]:
        yield from _wrong_query(query)
    shown = " ".join(queries)
    for metric in METRICS:
        if not re.search(rf"\b{metric.prometheus}(?:_bucket)?\b", shown):
            yield f"the dashboard lacks {metric.name}"
    for metric in METRICS:
        right = re.fullmatch(r"flowactions(\.[a-z_]+)+", metric.name) and metric.meaning.endswith(".")
        bounded = all(len(values) > 1 for values in metric.labels.values())
        buckets = list(metric.buckets) == sorted(metric.buckets)
        if not (right and bounded and buckets and bool(metric.buckets) == (metric.kind == "histogram")):
            yield f"{metric.name}: its name, meaning, labels or buckets are not as they should be"


def _wrong_query(query: str) -> Iterator[str]:
    """Say which metric, label or value of a query nobody reports."""
    known = {metric.prometheus: metric for metric in METRICS}
    known |= {f"{metric.prometheus}_bucket": metric for metric in METRICS if metric.kind == "histogram"}
    for name, selector in re.findall(r"(flowactions_[a-z_]+)(?:\{([^}]*)\})?", query):
        if name not in known:
            yield f"nobody reports {name}"
            continue
        labels = known[name].labels
        for label, value in re.findall(r'(\w+)!?="(\w+)"', selector):
            if value not in labels.get(label, ()):
                yield f"{name} is never reported with {label}={value}"
        for by in re.findall(r"by \(([^)]+)\)", query):
            yield from (f"{name} has no label {e}" for e in by.split(", ") if e not in {"le", *labels})


def of_manifest() -> Iterator[str]:
    """The manifest of the chat app names what a host uses: its scopes, the events that it reads, and its two routes."""
    pages = {each.language: each.text for each in blocks_of(DOCS / "how-to/connect-a-chat-workspace.md")}
    manifest = json.loads(pages["json"])
    events, oauth = manifest["settings"]["event_subscriptions"], manifest["oauth_config"]
    yield from differ("manifest, scopes", oauth["scopes"]["bot"], SCOPES)
    yield from differ("manifest, events", events["bot_events"], REASONS)
    shown = (*oauth["redirect_urls"], events["request_url"])
    routes = ("/integrations/chat/callback", "/integrations/chat/events")
    if [urlsplit(each).path for each in shown] != [*routes]:
        yield f"manifest: {shown} are not the routes of a callback and of events"


# Commands


IN_PAGES: Final = re.compile(
    r"(?:^|[`(|]|\$ )(flowactions(?: [^`\n|]*)?|(?:outbox|destinations) [a-z][^`\n|]*)(?=[`\n|]|$)",
    re.MULTILINE,
)
"""A command in backticks, or in a line of a block."""

IN_MESSAGES: Final = re.compile(r"'(flowactions [^'{}\n]+)'")


def unknown_in(line: str) -> str | None:
    """Give the first word of a command line that is no command or option of it; None: all are."""
    command: click.Command = flowactions
    words = iter(line.split()[line.startswith("flowactions") :])
    for word in words:
        options = {name: each for each in command.params for name in (*each.opts, *each.secondary_opts)}
        if word.startswith("-"):
            option = options.get(word)
            if option is None and word not in {"-h", "--help"}:
                return word
            if isinstance(option, click.Option) and not option.is_flag:
                next(words, None)
        elif isinstance(command, click.Group) and re.fullmatch(r"[a-z-]+", word):
            if word not in command.commands:
                return word
            command = command.commands[word]
    return None


def of_help() -> Iterator[str]:
    """Commands and options have help, documents are described, and commands that are written exist."""
    described = of_commands.each_command()
    for name, command in of_commands.commands():
        if not (command.help or "").strip().endswith((".", ")")):
            yield f"{name} has no sentence of help"
        options = [each for each in command.params if isinstance(each, click.Option)]
        yield from (f"{name} {e.name}: no help" for e in options if not (e.help or "").endswith((".", "…")))
        document = of_commands.document_of(command)
        if any("--json" in option.opts for option in options) != (document is not None):
            yield f"{name}: the option --json and a documented struct come together"
        if document is not None and f"### {document.__name__}\n" not in described:
            yield f"{name}: {document.__name__} is not described"
    groups = [each for each in flowactions.commands.values() if isinstance(each, click.Group)]
    yield from (f"{each.name} has no help" for each in (flowactions, *groups) if not each.help)
    written = [
        (path.name, each)
        for pattern, paths in ((IN_PAGES, [*ROOT.glob("*.md"), *PAGES]), (IN_MESSAGES, PLUGIN.rglob("*.py")))
        for path in paths
        for each in pattern.findall(path.read_text())
    ]
    if len(written) < 150:
        yield "commands on pages are not found"
    yield from (f"{name}: {line}: {word}?" for name, line in written if (word := unknown_in(line)))


# Installing


BY_NAME: Final = re.compile(r"install[^`\n]*[\s'\"]flowactions-plugin\b")
"""An install by the name alone, which on the package index is free for anybody."""


def of_installation() -> Iterator[str]:
    """Nothing says to install by the name; every page installs by one line; the image installs this version."""
    folders = ("flowactions_plugin", "hookspecs", "conformance")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    others = [ROOT / "CONTRIBUTING.md", DOCS / "how-to/containers/Dockerfile"]
    for path in (*PAGES, *others, *sources):
        yield from (f"{path.name} installs by the name: {e}" for e in BY_NAME.findall(path.read_text()))
    installing = {path: path.read_text() for path in PAGES if "../flowactions-plugin[" in path.read_text()}
    if len(installing) < 6:
        yield "pages that install are not found"
    for path, text in installing.items():
        lines = {
            line.strip().removeprefix("$ ") for line in text.splitlines() if "../flowactions-plugin[" in line
        }
        if lines != {INSTALL} or SENTENCE not in " ".join(text.split()):
            yield f"{path.name} installs by another line, or does not say what its path is"
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    if f"./flowactions_plugin-{version}-py3-none-any.whl[fast]\n" not in page("how-to/production.md"):
        yield "production.md installs another wheel than that of this version"


def of_tutorials() -> Iterator[str]:
    """Each page is followed by a test, and the text before a file's block names it: the word behind a fence is not shown."""
    yield from differ("tutorials", [path.stem for path in TUTORIALS.glob("*.md")], NAMES)
    for name in NAMES:
        before, *rest = FENCE.split((TUTORIALS / f"{name}.md").read_text())
        while rest:
            _, _, info, _, after, *rest = rest
            for word in info.split()[1:]:
                if "." in word and f"`{word}`" not in before:
                    yield f"{name}.md: nothing before its block names {word}"
            before = after


def of_index() -> Iterator[str]:
    """By following links from the index, every page is reached, as on the repository's host."""
    index = DOCS / "index.md"
    reached, waiting = {index}, [index]
    while waiting:
        at = waiting.pop()
        for first, second in LINK.findall(at.read_text()):
            target = (at.parent / unquote((first or second).partition("#")[0])).resolve()
            if target.suffix == ".md" and target.exists() and target not in reached:
                reached.add(target)
                waiting.append(target)
    yield from (f"nothing leads to {e.relative_to(ROOT)}" for e in DOCS.rglob("*.md") if e not in reached)


# Containers


class Examples(NamedTuple):
    """The files of the examples: the image, the services of Compose, and the pods of Kubernetes by name."""

    image: str
    compose: dict[str, Any]
    pods: dict[str, Any]


def _examples() -> Examples:
    folder = DOCS / "how-to" / "containers"
    image = (folder / "Dockerfile").read_text()
    compose = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
    pods = {}
    for manifest in yaml.safe_load_all((folder / "kubernetes.yaml").read_text()):
        of = manifest.get("spec", {})
        of = of.get("jobTemplate", {}).get("spec", of)
        if "template" in of:
            pods[manifest["metadata"]["name"]] = of["template"]["spec"]
    return Examples(image, compose, pods)


def of_commands_in_containers() -> Iterator[str]:
    """Command lines are lists that can be run: no shell is in front of them; settings exist."""
    folder = DOCS / "how-to" / "containers"
    image, compose, pods = _examples()
    lines = [json.loads(each) for each in rows(r"^CMD (.+)$", image)]
    lines += [each["command"] for each in compose.values() if "command" in each]
    lines += [container["command"] for pod in pods.values() for container in pod["containers"]]
    for line in lines:
        if not isinstance(line, list) or line[0] not in {"uvicorn", "flowactions"}:
            yield f"containers: {line} is no list, or another program"
        elif line[0] == "flowactions":
            yield from _wrong_command(line[1:])
    names = set(re.findall(r"\bFLOWACTIONS_[A-Z_]+\b", "".join(each.read_text() for each in folder.iterdir())))
    if not {"FLOWACTIONS_DATABASE_URL", "FLOWACTIONS_ENCRYPTION_KEYS"} <= names <= READERS.keys():
        yield f"containers: settings that are not there: {names - READERS.keys()}"


def of_containers() -> Iterator[str]:
    """Time to drain, users, order and probes of the image, of Compose and of Kubernetes."""
    image, compose, pods = _examples()
    # Longer than an attempt, and than a tick that is finished first.
    least = Timing().stop_seconds + 20
    grace = compose["worker"]["stop_grace_period"].removesuffix("s")
    if min(int(grace), pods["flowactions-worker"]["terminationGracePeriodSeconds"]) < least:
        yield f"containers: a worker has less than {least} s to drain"
    if rows(r"^STOPSIGNAL (.+)$", image) != ["SIGTERM"]:
        yield "containers: the image is stopped by another signal"
    (user,) = rows(r"^USER (.+)$", image)
    for name, pod in pods.items():
        of_pod, within = pod["securityContext"], [each["securityContext"] for each in pod["containers"]]
        closed = all(e["readOnlyRootFilesystem"] and not e["allowPrivilegeEscalation"] for e in within)
        if not (of_pod["runAsNonRoot"] and str(of_pod["runAsUser"]) == user and int(user) and closed):
            yield f"containers: {name} may run as root, or may do more than it needs"
    for name, on, condition in (
        ("web", "migrate", "service_completed_successfully"),
        ("worker", "migrate", "service_completed_successfully"),
        ("migrate", "database", "service_healthy"),
    ):
        if compose[name]["depends_on"][on]["condition"] != condition:
            yield f"containers: {name} does not wait for {on}"
    (web,) = pods["shop-web"]["containers"]
    for probe in ("readinessProbe", "livenessProbe"):
        if f"`GET {web[probe]['httpGet']['path']}`" not in page("reference/http.md"):
            yield f"containers: {probe} is no route"
    if any("Probe" in key for each in pods["flowactions-worker"]["containers"] for key in each):
        yield "containers: a worker has no routes to probe"


def _wrong_command(arguments: list[str]) -> Iterator[str]:
    group: click.Command = flowactions
    try:
        while isinstance(group, click.Group):
            _, found, arguments = group.resolve_command(click.Context(group), arguments)
            assert found is not None
            group = found
        group.make_context("flowactions", arguments)
    except click.UsageError as exc:
        yield f"containers: {exc.message}"


EACH: Final = (
    of_architecture,
    of_reference,
    of_errors,
    of_contract_pages,
    of_operation,
    of_log_events,
    of_observability,
    of_manifest,
    of_help,
    of_installation,
    of_tutorials,
    of_index,
    of_commands_in_containers,
    of_containers,
)
