"""METHODS: what each method of the host answers to plugins: the probe asks it within the host, and each answer is compared."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

from msgspec.structs import replace

from flowactions_conformance.kit.outcomes import CheckFailed, NotTestable
from flowactions_conformance.kit.probing.plugin import OF_REQUESTS, ROUTES
from flowactions_conformance.kit.registry import check
from flowactions_conformance.kit.support.compare import difference
from flowactions_conformance.kit.support.credentials import unreadable
from flowactions_conformance.kit.support.evidence import provides
from flowactions_conformance.kit.support.pair import Pair
from flowactions_conformance.kit.support.survey import OTHER_SECRET, SECRET, Survey
from flowactions_conformance.kit.trial import Trial
from flowactions_conformance.kit.under_test import Agent, Experience, Flow, Login, SubFlow, Trigger

NAMING: Final = ("organization", "organization-id", "org", "org-id", "tenant", "tenant-id")
"""Names by which requests choose one of a person's organizations: in headers (``x-org``), queries and bodies (``org_id``, ``orgId``)."""
AT_ONCE: Final = 3
"""How often each question is asked at the same moment as all others."""
CHANGES: Final = 3
"""How often a node is changed and asked for again."""
CANCELLED_AFTER: Final = (1, 4, 16)
"""Turns of the event loop after which a call is cancelled."""
FORMS: Final[Sequence[tuple[str, Callable[[str], str]]]] = (
    ("in other capitals", lambda id_: id_.swapcase()),
    ("without its last character", lambda id_: id_[:-1]),
    ("with a blank behind it", lambda id_: f"{id_} "),
)
LONG_ID: Final = 8
"""Of shorter ones, another form may be the id of something else."""
REFUSED: Final = "None, or an error"
GONE: Final = "raises OriginGone, or what the default raises"
"""Of a secret: with None, the delivery would be sent unsigned."""
NOTHING_THERE: Final = frozenset({"OriginGone", "OriginUnknown", "QuestionRequired"})
"""Errors by which a method says that something does not exist."""

BY_ALL_IDS: Final = "the method finds what it is asked for by one of its ids, or compares them in another form: look it up by all of them"
RAISES_FOR_NONE: Final = (
    "the method raises for what does not exist, or for a header that it cannot read: return None"
)
RAISES: Final = "the method itself fails: the place is behind the error"
ANOTHERS: Final = (
    "the method accepts a credential of another kind, one that it does not know, or one of somebody without that right",
    "a credential is compared in a part, in another form, or against a column that is too short: compare all of it",
)
NOT_FOUND: Final[Mapping[str, str]] = {
    "node": "Host.node looks only at a part of the flow: look into every loop, branch and sub-flow, however deep",
    "signing_secret": "an own signing_secret does not know origins of this kind: call super().signing_secret(origin) for the rest",
    "logic_action": "the method does not look for actions of this kind: rows have no node, and groups of nodes have one",
}
MISSES: Final = (
    "the method looks in another place, or for another id, than the one under which the host keeps it"
)
UNSIGNED: Final = "an own signing_secret must raise OriginGone for what was removed: None sends unsigned"
DIFFERS: Final = (
    "the answer is built from something else than what is stored, for example from fixed or default values",
    "what is stored is changed on its way, for example by a serializer that drops or renames fields",
)


class When(NamedTuple):
    """In what circumstances a method is asked.

    Attributes:
        words: the end of a sentence.
        causes: what usually makes an answer wrong in them alone.
    """

    words: str
    causes: tuple[str, ...]


KEPT: Final = "the method answers from a cache, with the session, or from what was loaded at the start: look it up at each call"
ALONE: Final = When("", ())
CHANGED: Final = When(", of what was changed a moment ago", (KEPT,))
NOW: Final = When("", (KEPT,))
SHARED: Final = When(
    ", while others are asked at the same moment",
    ("who calls, or what is asked for, is kept in a global or on the host object",),
)
CANCELLED: Final = When(
    " when its call is cancelled",
    ("the method catches the cancellation, or every BaseException, and returns: let it out",),
)
AFTER_CANCELLED: Final = When(
    " after a call was cancelled",
    ("a lock or a connection that the cancelled call held is not given back: use async with",),
)
OUTAGE: Final = When(
    " while the host's database fails; it has to raise",
    (
        "the method catches the error of its database and returns None, as for what does not exist: let the error out",
        "the method raises OriginGone for an error of its database",
    ),
)
AFTER_OUTAGE: Final = When(
    " after its database had failed",
    ("what was answered during the failure is cached, or a connection that failed is used again",),
)
NAMED: Final = When("", ("the organization is taken from the request, without a look at who is its member",))


class Question(NamedTuple):
    """What a method is asked, and what it has to answer.

    Attributes:
        method: of the host.
        about: the arguments in words.
        expected: the fields that the answer must have; ``None``; a text; what it has to raise; or `REFUSED`.
        arguments: of the method; of one that is given a request, none.
        who: sends that request.
        sending: headers, query and body of it.
        path: of it, in place of the probe's.
        among: of `agents_using`: the agents that the check knows; a host may have others.
    """

    method: str
    about: str
    expected: Any
    arguments: Sequence[Any] = ()
    who: Login | None = None
    sending: Mapping[str, Any] = {}
    path: str | None = None
    among: frozenset[str] = frozenset()

    @property
    def is_of_a_request(self) -> bool:
        """Whether the method is given a request."""
        return self.method in OF_REQUESTS

    def __str__(self) -> str:
        """Return the call."""
        arguments = "request" if self.is_of_a_request else ", ".join(map(repr, self.arguments))
        return f"{self.method}({arguments})"


class Raised(NamedTuple):
    """What a method has raised.

    Attributes:
        name: of the error.
        told: what it says, and where it was raised.
    """

    name: str
    told: str = ""

    def __str__(self) -> str:
        """Return the name."""
        return self.name


class Answers:
    """Asks a host's methods, and compares the answers.

    Args:
        trial: of the check.
    """

    def __init__(self, trial: Trial) -> None:
        self._trial = trial

    async def ask(self, question: Question, cancel: int | None = None) -> Any:
        """Return a method's answer: the struct's fields, ``None``, or what it has raised."""
        trial, sending = self._trial, dict(question.sending)
        body = {
            "method": question.method,
            "arguments": list(question.arguments),
            "path": question.path,
            "cancel": cancel,
        }
        answer = await trial.request(
            "POST",
            f"{ROUTES}/ask",
            who=question.who,
            json={**body, **sending.pop("json", {})},
            noted=f"Host.{question.method} for {question.about}",
            **sending,
        )
        trial.answers(answer, 200, "the probe cannot ask a method of the host")
        told = answer.json()
        if told["raised"]:
            return Raised(told["raised"], told["told"])
        if question.among and isinstance(told["value"], list):
            return sorted(each["id"] for each in told["value"] if each.get("id") in question.among)
        if isinstance(told["value"], dict):
            told["value"].get("agentIds", []).sort()
        return told["value"]

    async def compare(self, questions: Sequence[Question], when: When = ALONE) -> None:
        """Ask one question after the other."""
        for question in questions:
            self.judge(question, await self.ask(question), when)

    def judge(self, question: Question, seen: Any, when: When = ALONE) -> None:
        """Compare an answer.

        Raises:
            CheckFailed: it is another one.
        """
        wanted, shown, how = question.expected, seen, ""
        if wanted == GONE:
            right = isinstance(seen, Raised) and seen.name in NOTHING_THERE
        elif wanted == REFUSED:
            right = seen is None or isinstance(seen, Raised)
        elif isinstance(wanted, Raised) or isinstance(seen, Raised):
            right = type(wanted) is type(seen) and wanted.name == seen.name
        else:
            if isinstance(wanted, dict) and isinstance(seen, dict):
                shown = {name: seen.get(name) for name in wanted}
                how = difference(wanted, shown) or ""
            right = difference([wanted], [shown]) is None
        if right:
            return
        said = f"answers {'something else' if how else 'something' if isinstance(seen, dict) else repr(seen)[:300]}"
        if isinstance(seen, Raised):
            said, shown = f"raises {seen}", seen.told
        causes = when.causes
        if not causes or wanted == GONE or _failed(seen):
            causes = _causes(question, seen)
        raise CheckFailed(
            f"Host.{question.method} {said} for {question.about}{when.words}{how and f': {how[:300]}'}",
            expected=f"{question} → {wanted}",
            actual=shown,
            causes=causes,
        )

    async def at_once(self, questions: Sequence[Question]) -> None:
        """Ask all questions at the same moment, several times."""
        asked = self._trial.values.draw.sample([*questions] * AT_ONCE, len(questions) * AT_ONCE)
        for question, seen in zip(asked, await asyncio.gather(*map(self.ask, asked)), strict=True):
            self.judge(question, seen, SHARED)

    async def cancelled(self, questions: Sequence[Question]) -> None:
        """Cancel calls as the plugin does those that are late. Each has to end by that, and the next one to answer."""
        for question in questions:
            for turns in CANCELLED_AFTER:
                seen = await self.ask(question, turns)
                if not isinstance(seen, Raised) or seen.name != "CancelledError":
                    self.judge(question, seen, CANCELLED)
                self.judge(question, await self.ask(question), AFTER_CANCELLED)


def _failed(seen: Any) -> bool:
    """Whether a method failed, and did not say by an error that something does not exist."""
    return isinstance(seen, Raised) and seen.name not in NOTHING_THERE


def _causes(question: Question, seen: Any) -> tuple[str, ...]:
    """Return what usually causes an answer, of a method that was asked alone."""
    nothing_due = question.expected is None or question.expected == REFUSED
    if isinstance(seen, Raised):
        return (RAISES_FOR_NONE,) if nothing_due else (RAISES,)
    if question.expected == GONE or isinstance(question.expected, Raised):
        must = f"the method does not raise {question.expected} for what only a further id can tell"
        return (UNSIGNED if question.expected == GONE else must,)
    if nothing_due:
        return ANOTHERS if question.is_of_a_request else (BY_ALL_IDS,)
    if isinstance(seen, list) and len(set(seen)) < len(seen):
        return ("an agent is answered once for each of its flows, as a join gives it: answer each agent once",)
    if seen is None:
        return (*filter(None, [NOT_FOUND.get(question.method)]), MISSES)
    return DIFFERS


class Asked:
    """The world of the questions: an agent with a flow and a node in it, and a second agent, in two organizations.

    Args:
        trial: of the check.
    """

    def __init__(self, trial: Trial) -> None:
        self.trial, self.pair = trial, Pair(trial)
        self.reader = Login(
            kind="dashboard", organization=trial.organization, id=trial.id("reader"), may_change=False
        )
        self.backend = self.pair.backend(trial.organization)
        self.second = Agent(id=trial.id("second"), name="Second", organization=trial.organization)
        self.node = trial.webhook(
            "node", webhookSecret=trial.id("secret"), unknown={"a": [0, None, ""], "type": "chat_message"}
        )
        self.other_node = trial.webhook("other-node", webhookSecret=trial.id("other-secret"))
        self.flow = trial.flow(trial.step("a"), self.node)
        self.second_uses = False
        self.two_tenants = "tenancy" in trial.session.claims
        self.has_backends = provides(trial, "api_principal")

    async def seed(self, *experiences: Experience, backends: Sequence[Login] = ()) -> None:
        """Has the host make it; of several organizations, if the host has them."""
        trial = self.trial
        logins = (self.reader, *(backends or ((self.backend,) if self.has_backends else ())))
        # A flow of the second agent, with a webhook or without, and another one of the first.
        first = trial.webhook("idle-node") if self.second_uses else trial.probe("idle-node")
        idle = trial.flow(first, name="idle", agent=self.second.id)
        more = trial.flow(trial.webhook("more-node"), name="more")
        if not self.two_tenants:
            world = trial.world(self.flow, idle, more, agents=(self.second,), logins=logins)
        else:
            theirs = (self.pair.backend(self.pair.other),) if self.has_backends else ()
            flows = (self.flow, idle, more, self.pair.flow(self.other_node, other=True))
            world = self.pair.world(*flows, agents=(self.second,), logins=(*logins, *theirs))
        await trial.seed(world=replace(world, experiences=experiences))

    def people(self) -> list[Question]:
        """Return questions for who calls, by credentials of each kind."""
        of, trial = self.trial.of_host, self.trial
        own = {"organizationId": of(trial.organization)}
        author, reader = (
            {**own, "userId": of(who.id), "mayChange": who.may_change} for who in (trial.author, self.reader)
        )
        asked = [
            self._who("dashboard_principal", "a person", author, trial.author),
            self._who("dashboard_principal", "a person who may only look", reader, self.reader),
            self._who("dashboard_principal", "nobody", None),
            self._who("operator", "a person who operates no host", None, trial.author),
            self._who("operator", "a person who may only look", None, self.reader),
            self._who("operator", "nobody", None),
        ]
        if self.has_backends:
            asked += [
                self._who("dashboard_principal", "a backend's credential", None, self.backend),
                self._who("operator", "a backend's credential", None, self.backend),
                self._who("api_principal", "a person's credential", None, trial.author),
                self._who("api_principal", "nobody", None),
                self._who("api_principal", "a backend", {**own, "allAgents": True}, self.backend),
            ]
        return self._provided(asked)

    async def unreadable(self) -> list[Question]:
        """Return questions for who calls, by credentials that nobody was given, or that cannot be read."""
        methods = {"dashboard_principal": self.trial.author, "operator": self.trial.author}
        if self.has_backends:
            methods["api_principal"] = self.backend
        return self._provided(
            [
                self._who(method, about, None, sending={"headers": headers})
                for method, who in methods.items()
                for about, headers in unreadable(await self.trial.call("headers", who))
            ]
        )

    def things(self) -> list[Question]:
        """Return questions for agents and nodes."""
        trial, of = self.trial, self.trial.of_host
        org, agent, flow, node = map(of, (trial.organization, trial.agent, self.flow.id, self.node.id))
        nowhere, idle, step = trial.id("nowhere"), of(trial.id("idle")), of(trial.id("a"))
        saved = {"id": node, "type": "webhook", "config": self.node.config}
        asked = [
            Question("agent", "an agent", {"id": agent, "organizationId": org}, (agent,)),
            Question("agent", "an agent that does not exist", None, (nowhere,)),
            self._using(
                "the type 'webhook'",
                sorted([agent, of(self.second.id)] if self.second_uses else [agent]),
                org,
                "webhook",
            ),
            self._using("a type that no flow uses", [], org, "chat_message"),
            self._using("the beginning of a type", [], org, "web"),
            Question("node", "a node", saved, (org, flow, node)),
            Question("node", "a flow that does not exist", None, (org, nowhere, node)),
            Question("node", "a node that does not exist", None, (org, flow, nowhere)),
            Question("node", "a node in another flow than its own", None, (org, idle, node)),
            Question("node", "a content step", None, (org, flow, step)),
            self._secret("a node", self.node.config["webhookSecret"], org),
        ]
        for how, form in FORMS:
            if form(agent) != agent and len(agent) >= LONG_ID:
                asked.append(Question("agent", f"an agent's id {how}", None, (form(agent),)))
            if form(node) != node and len(node) >= LONG_ID:
                asked.append(Question("node", f"a node's id {how}", None, (org, flow, form(node))))
        return self._provided(asked)

    async def in_sub_flows(self, change: int = 0) -> list[Question]:
        """Return questions for nodes of sub-flows, by the flow that is opened; the host makes these flows.

        Args:
            change: the number of the change of the sub-flows, each saved alone, by which their nodes get other secrets.
        """
        trial, of = self.trial, self.trial.of_host
        if "loops" not in trial.session.claims or "subflow" in trial.session.lacks:
            return []
        nodes = [
            trial.webhook(name, webhookSecret=trial.id(f"{name}-{change if depth else 0}"))
            for depth, name in enumerate(("deep-0", "deep-1", "deep-2", "deep-3"))
        ]
        inner: Flow | None = None
        for depth in (3, 2, 1, 0):
            below = [] if inner is None else [SubFlow(id=trial.id(f"into-{depth + 1}"), flow=inner.id)]
            inner = trial.flow(trial.step(f"at-{depth}"), nodes[depth], *below, name=f"level-{depth}")
            if depth or not change:
                await trial.seed(inner)
        return [
            Question(
                "node",
                f"a node that is {depth} sub-flows deep in the flow{trial.stands(f'deep-{depth}')}",
                {"id": of(node.id), "type": "webhook", "config": node.config},
                (of(trial.organization), of(trial.id("level-0")), of(node.id)),
            )
            for depth, node in enumerate(nodes)
        ]

    def of_others(self) -> list[Question]:
        """Return questions that name the things of one organization, and the other one."""
        trial, of, pair = self.trial, self.trial.of_host, self.pair
        org, other, flow, node = map(of, (trial.organization, pair.other, self.flow.id, self.node.id))
        theirs, mine = {"organizationId": other}, {"organizationId": org}
        mixed = "another organization, and a flow and node of the first one"
        asked = [
            self._who("dashboard_principal", "a person of another organization", theirs, pair.stranger),
            self._who("operator", "a person of another organization", None, pair.stranger),
            Question("agent", "an agent of another organization", theirs, (of(pair.other_agent),)),
            self._using("another organization", [of(pair.other_agent)], other, "webhook"),
            Question("node", mixed, None, (other, flow, node)),
            self._secret(mixed, REFUSED, other),
        ]
        if self.has_backends:
            backend = pair.backend(pair.other)
            at_ours, at_theirs = (trial.logic_path(each) for each in (trial.agent, pair.other_agent))
            path = "at the path of an agent of the other one"
            asked += [
                self._who("api_principal", "a backend of another organization", theirs, backend),
                self._who(
                    "api_principal", f"a backend of another organization {path}", theirs, backend, path=at_ours
                ),
                self._who(
                    "api_principal",
                    f"a backend of the first organization {path}",
                    mine,
                    self.backend,
                    path=at_theirs,
                ),
            ]
        return self._provided(asked)

    def named(self) -> list[Question]:
        """Return questions of people whose requests name another organization."""
        trial, other = self.trial, self.trial.of_host(self.pair.other)
        mine = {"organizationId": trial.of_host(trial.organization)}
        ways: dict[str, Mapping[str, Any]] = {}
        for name in NAMING:
            words = name.split("-")
            camel = words[0] + "".join(map(str.title, words[1:]))
            if other.isascii() and other.isprintable():
                ways[f"the header x-{name}"] = {"headers": {f"x-{name}": other}}
            ways[f"the query {camel}"] = {"params": {camel: other, "_".join(words): other}}
            ways[f"{camel} in the body"] = {"json": {camel: other, "_".join(words): other}}
        about = "a person of the first organization whose request names another one by"
        return [
            self._who("dashboard_principal", f"{about} {how}", mine, trial.author, sending=sending)
            for how, sending in ways.items()
        ]

    def _provided(self, asked: Sequence[Question]) -> list[Question]:
        required = ("dashboard_principal", "node")
        return [each for each in asked if each.method in required or provides(self.trial, each.method)]

    def _who(self, method: str, about: str, expected: Any, who: Login | None = None, **more: Any) -> Question:
        return Question(method, about, expected, who=who, **more)

    def _using(self, about: str, expected: list[str], *arguments: str) -> Question:
        of = self.trial.of_host
        among = frozenset(map(of, (self.trial.agent, self.second.id, self.pair.other_agent)))
        return Question("agents_using", about, expected, arguments, among=among)

    def _secret(self, about: str, expected: Any, organization: str) -> Question:
        of = self.trial.of_host
        ids = {"agentId": of(self.flow.agent), "flowId": of(self.flow.id), "nodeId": of(self.node.id)}
        origin = {"kind": "flow_node", "organizationId": organization, **ids}
        return Question("signing_secret", about, expected, (origin,))


@check(
    "METHODS-1",
    profile="core",
    clause="contract: What a host provides, What a host does (Credentials, Tenants)",
    causes=(
        KEPT,
        BY_ALL_IDS,
    ),
)
async def methods_answer_what_is_asked(trial: Trial) -> None:
    """Each method of the host answers with what it is asked for as it is now, and None for what does not exist."""
    world, answers = Asked(trial), Answers(trial)
    await world.seed()
    await answers.compare([*world.people(), *await world.unreadable()])
    await answers.compare([*world.things(), *await world.in_sub_flows()])
    await answers.compare(await world.in_sub_flows(1), CHANGED)
    own = {"organizationId": trial.of_host(trial.organization)}
    for number in range(CHANGES):
        # At once after another question for it: what is kept for a second is kept too long.
        world.node = replace(
            world.node, config={**world.node.config, "webhookSecret": trial.id(f"secret-{number}")}
        )
        world.flow = trial.flow(trial.step("a"), world.node)
        world.second_uses = number == 0
        await world.seed()
        changed = {"node", "signing_secret", "agents_using"}
        asked = [each for each in world.things() if each.method in changed and each.expected]
        await answers.compare(asked, CHANGED)
    about = "a node that was removed a moment ago"
    gone = [Question("node", about, None, each.arguments) for each in asked if each.method == "node"]
    gone += [
        Question(each.method, about, GONE, each.arguments) for each in asked if each.method == "signing_secret"
    ]
    world.flow = trial.flow(trial.step("a"))
    await world.seed()
    await answers.compare(gone, NOW)
    for may in (True, False):
        world.reader = replace(world.reader, may_change=may)
        about = f"a person whose right to change things was {'given' if may else 'taken away'} a moment ago"
        await world.seed()
        await answers.compare(
            [Question("dashboard_principal", about, {**own, "mayChange": may}, who=world.reader)], NOW
        )
    if world.has_backends:
        first, second = trial.agent, world.second.id
        for allowed in ((first,), (), (second,)):
            backend = replace(world.backend, agents=allowed, all_agents=False)
            told = {**own, "allAgents": False, "agentIds": [trial.of_host(each) for each in allowed]}
            about = f"a backend that may address {', '.join(allowed) or 'no agent'} now"
            await world.seed(backends=[backend])
            await answers.compare([Question("api_principal", about, told, who=backend)], NOW)


@check(
    "METHODS-2",
    profile="tenancy",
    clause="contract: What a host does (Tenants), What a host provides",
    causes=(*NAMED.causes, BY_ALL_IDS),
)
async def methods_keep_organizations_apart(trial: Trial) -> None:
    """Whatever a request or a plugin names, each method answers with what belongs to the organization, also for others at once."""
    world, answers = Asked(trial), Answers(trial)
    await world.seed()
    asked = [*world.people(), *world.things(), *world.of_others()]
    await answers.compare(asked)
    await answers.compare(world.named(), NAMED)
    await answers.at_once(asked)


@check(
    "METHODS-3",
    profile="logic",
    clause="contract: What a host provides (logic_action, QuestionRequired); http: Trigger a logic webhook; spec 4.2",
    causes=(
        "logic_action raises LookupError or IndexError: return None where no action exists",
        "logic_action does not look at the agent, the experience, the group, the question or the index",
        "logic_action finds a row by its id alone: two experiences may have rows of the same id",
    ),
)
async def logic_actions_are_found_by_all_ids(trial: Trial) -> None:
    """logic_action finds an action by all ids of its reference, and returns None if one of them is wrong."""
    world, survey = Asked(trial), Survey(trial)
    row = survey.row("row", survey.action("first"), survey.action("second", OTHER_SECRET, **{"X-Kit": "own"}))
    group = survey.group("group", survey.action("of-group"))
    question = survey.group("asked", survey.action("of-question"), question="question")
    # The same row in two experiences. Neither order of storing may decide which is found.
    twins = [
        replace(
            survey.experience(),
            id=trial.id(f"{name}-twin"),
            triggers=(survey.row("row", survey.action(f"{name}-twin")),),
        )
        for name in ("a", "z")
    ]
    await world.seed(twins[0], survey.experience(row, group, question), twins[1])
    asked = [*_of_rows(world, survey, row, twins), *_of_groups(survey, group, question)]
    answers = Answers(trial)
    await answers.compare([*asked, *_secrets_of(asked)])
    # The secret of the first action is changed, and the group is removed.
    changed = survey.row("row", survey.action("first", OTHER_SECRET))
    await world.seed(survey.experience(changed, question))
    first, removed = asked[0], next(each for each in asked if "of-group" in str(each.expected))
    now = first._replace(expected={**first.expected, "secret": OTHER_SECRET})
    gone = removed._replace(expected=None)
    (secret,) = _secrets_of([removed])
    await answers.compare([now, *_secrets_of([now]), gone, secret._replace(expected=GONE)], CHANGED)


def _secrets_of(asked: Sequence[Question]) -> list[Question]:
    """Return questions for the secrets of actions that were asked for."""
    return [
        Question(
            "signing_secret",
            each.about,
            each.expected["secret"],
            ({"kind": "logic_action", "ref": each.arguments[0]},),
        )
        for each in asked
        if isinstance(each.expected, dict) and "secret" in each.expected
    ]


def _of_rows(world: Asked, survey: Survey, row: Trigger, twins: Sequence[Experience]) -> list[Question]:
    trial, nowhere = world.trial, world.trial.id("nowhere")
    secret = {
        "url": trial.hook("second"),
        "secret": OTHER_SECRET,
        "headers": [{"key": "X-Kit", "value": "own"}],
    }
    asked: list[tuple[str, Any, dict[str, Any]]] = [
        ("the first action of a row", {"url": trial.hook("first"), "secret": SECRET}, {}),
        ("the second action of a row", secret, {"actionIndex": 1}),
        ("an action behind the last one", None, {"actionIndex": 2}),
        ("a row that does not exist", None, {"triggerRowId": nowhere}),
        ("an experience that does not exist", None, {"experienceId": nowhere}),
        ("an agent that does not exist", None, {"agentId": nowhere}),
        ("another agent than the experience's", None, {"agentId": trial.of_host(world.second.id)}),
        ("a node's trigger group as a row", None, {"triggerRowId": trial.of_host(trial.id("group"))}),
        *(
            (
                f"the row of the same id in the experience {each.id}",
                {"url": each.triggers[0].actions[0].url},
                {"experienceId": trial.of_host(each.id)},
            )
            for each in twins
        ),
    ]
    if world.two_tenants:
        theirs = {"organizationId": trial.of_host(world.pair.other)}
        agent = {"agentId": trial.of_host(world.pair.other_agent)}
        asked.append(("another organization", None, theirs))
        asked.append(("an agent of another organization", None, {**theirs, **agent}))
    ref = {**survey.ref(), "source": "experience_trigger", "triggerRowId": trial.of_host(row.id)}
    return [
        Question("logic_action", about, expected, ({**ref, **fields},)) for about, expected, fields in asked
    ]


def _of_groups(survey: Survey, group: Trigger, asked: Trigger) -> list[Question]:
    trial, nowhere = survey.trial, survey.trial.id("nowhere")
    ref = {**survey.ref(), "source": "node_trigger", "nodeId": trial.of_host(group.node or "")}
    plain = {**ref, "nodeTriggerGroupId": trial.of_host(group.id)}
    named = {**ref, "nodeTriggerGroupId": trial.of_host(asked.id)}
    own = {"questionId": trial.of_host(asked.question or "")}
    return [
        Question("logic_action", about, expected, (fields,))
        for about, expected, fields in (
            ("a node's trigger group", {"url": trial.hook("of-group"), "secret": SECRET}, plain),
            ("an action behind the last one of a node's group", None, {**plain, "actionIndex": 1}),
            ("a trigger group that does not exist", None, {**plain, "nodeTriggerGroupId": nowhere}),
            ("a node that does not exist", None, {**plain, "nodeId": nowhere}),
            (
                "a survey question's group with its question",
                {"url": trial.hook("of-question")},
                {**named, **own},
            ),
            ("a survey question's group with another question", None, {**named, "questionId": nowhere}),
            ("a survey question's group without a question", Raised("QuestionRequired"), named),
        )
    ]


@check(
    "METHODS-4",
    profile="core",
    clause="contract: What a host provides (methods may be called concurrently)",
    causes=(*SHARED.causes, *CANCELLED.causes, *AFTER_CANCELLED.causes),
)
async def methods_bear_others_and_their_end(trial: Trial) -> None:
    """Methods that are called at the same moment, and after a call that was cancelled, answer as they do alone."""
    world, answers = Asked(trial), Answers(trial)
    await world.seed()
    asked = [*world.people(), *world.things()]
    await answers.at_once(asked)
    await answers.cancelled([each for each in asked if each.expected])


@check(
    "METHODS-5",
    profile="durability",
    alone=True,
    clause="contract: What a host provides (None and errors)",
    causes=OUTAGE.causes,
)
async def methods_raise_during_an_outage(trial: Trial) -> None:
    """While the host's own database fails, its methods raise: none of them says that something does not exist."""
    await trial.start()
    world, answers, survey = Asked(trial), Answers(trial), Survey(trial)
    row = survey.row("row", survey.action("action"))
    has_logic = "logic" in trial.session.claims
    await world.seed(*((survey.experience(row),) if has_logic else ()))
    asked = [each for each in (*world.people(), *world.things()) if each.expected]
    if has_logic:
        ref = {**survey.ref(), "source": "experience_trigger", "triggerRowId": trial.of_host(row.id)}
        asked.append(Question("logic_action", "an action", {"url": trial.hook("action")}, (ref,)))
    await answers.compare(asked)
    failed = set()
    async with _outage(trial):
        for question in asked:
            seen = await answers.ask(question)
            if _failed(seen):
                failed.add(question.method)
            else:
                answers.judge(question, seen, OUTAGE)
    if not failed:
        raise NotTestable("fail_database(True) has no effect: no method of the host has raised")
    await answers.compare(asked, AFTER_OUTAGE)


@asynccontextmanager
async def _outage(trial: Trial) -> AsyncIterator[None]:
    await trial.call("fail_database", True)
    try:
        yield
    finally:
        await trial.call("fail_database", False)
