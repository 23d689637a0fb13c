"""HTTP: the plugins' routes are there, and requests and answers pass through the host unchanged."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple
from urllib.parse import quote, unquote, urljoin, urlsplit

import httpx

from flowactions_conformance.chat_provider.app import SIGNING_SECRET
from flowactions_conformance.chat_provider.events import signature
from flowactions_conformance.kit.probing.plugin import ASKED, NODE, ROUTES, SHOWN_BYTES
from flowactions_conformance.kit.registry import check
from flowactions_conformance.kit.support import evidence
from flowactions_conformance.kit.support.chat import INSTALL
from flowactions_conformance.kit.support.compare import json_object, text_change
from flowactions_conformance.kit.support.routes import ROUTES as OWN_ROUTES
from flowactions_conformance.kit.support.samples import (
    ANSWERS,
    BODIES,
    COOKIE,
    HEADERS,
    IN_PIECES,
    LARGEST,
    METHODS,
    PATHS,
    PIECE_BYTES,
    QUERY,
    REDIRECTS,
    SIGNED,
)
from flowactions_conformance.kit.support.survey import Survey
from flowactions_conformance.kit.trial import ABOUT_IDS, Trial

ECHO: Final = f"{ROUTES}/echo"
EVENTS: Final = "/integrations/chat/events"
FROM_PLUGIN: Final = "200 from the plugin"

TOO_LARGE: Final = (
    "the host, a middleware or a proxy before it has a limit for bodies: the plugin's routes take up to two mebibytes",
)
REWRITING: Final = (
    "an error handler or middleware for the whole app rewrites answers: leave those of the plugins' routes alone",
)
OPEN: Final = (
    "the host demands a session or token of every route: the plugin checks the callers of its own routes",
    "the host's CSRF protection covers the plugin's routes: exempt them, since they have their own",
)


@check(
    "HTTP-1",
    profile="core",
    clause="contract: What a host does (Routes); http: HTTP routes; spec 4",
    causes=(
        "actions.route_handlers are not mounted, or not all of them",
        "they are mounted below another path than the driver's prefix",
        "the host has a route of its own at one of these paths",
    ),
)
async def answers_at_every_path(trial: Trial) -> None:
    """Every route of the plugin answers at its path below the host's prefix."""
    await trial.seed()
    wrong = []
    for route in OWN_ROUTES:
        who = trial.author if route.signed_in else None
        answer = await trial.request(route.method, route.path, who=who, **route.sending)
        if answer.status_code not in route.answers:
            expected = " or ".join(map(str, sorted(route.answers)))
            wrong.append(f"{route.method} {route.path} answered {answer.status_code}, not {expected}")
    trial.expect(
        not wrong,
        f"{len(wrong)} of {len(OWN_ROUTES)} routes do not answer as the plugin does"
        f" below the prefix {trial.host.prefix!r}: {wrong[0] if wrong else ''}",
        expected="the plugin's own answer at each path",
        actual="\n".join(wrong),
    )


@check(
    "HTTP-2",
    profile="core",
    clause="contract: What a host does (Routes), The facade, Pickers",
    causes=(
        "the routes are mounted below a path that FlowActions does not know: load(prefix=…) writes it into the palette",
    ),
)
async def pickers_answer_where_the_palette_says(trial: Trial) -> None:
    """The routes of pickers answer at the paths that the palette names."""
    for name, expected in ((NODE, {200}), ("chat_message", {200, 409})):
        entry = await evidence.shown(trial, name)
        for field, path in (entry.get("pickers") or {}).items():
            answer = await trial.request("GET", f"{trial.host.url}{path}", who=trial.author)
            said = f"the picker of {name}.{field} does not answer at {path}, where the palette has it"
            trial.answers(answer, answer.status_code in expected, said, sorted(expected))


class Exchange(NamedTuple):
    """A request to the probe, and the answer that it asks for."""

    what: str
    """The kind of the body."""
    method: str
    end: str
    """Of the path, percent-encoded where a text would be read otherwise."""
    query: str
    headers: Sequence[tuple[str, str]]
    body: bytes
    status: int
    answers: Sequence[tuple[str, str]]
    """Headers of the answer."""
    answer: bytes
    times: int = 1
    """How often ``answer`` stands in the answer."""


def _exchanges(trial: Trial) -> list[Exchange]:
    """Draw requests and answers, each kind of a part in one of them at least."""
    draw = trial.values.draw
    bodies = [
        *BODIES,
        IN_PIECES,
        ("two mebibytes, the largest that a route takes", "application/json", LARGEST),
    ]
    answers = [
        *((status, [("content-type", media)], body, times) for status, media, body, times in ANSWERS),
        *((status, [("location", to)], b"", 1) for status, to in REDIRECTS),
    ]
    requests = [*bodies, *[("", "", b"")] * (len(answers) - len(bodies))]
    for each in (requests, answers):
        draw.shuffle(each)
    made = []
    for number, ((what, media, body), (status, headers, answer, times)) in enumerate(
        zip(requests, answers, strict=True)
    ):
        own = [*trial.values.headers(), *SIGNED, ("x-kit-twice", "one"), ("x-kit-twice", "two")]
        methods = METHODS if not what and status < 500 else [each for each in METHODS if each.startswith("P")]
        cookies = [("set-cookie", f"{name}-{trial.token}={name}") for name in ("one", "two", "three")]
        request = (methods[number % len(methods)], PATHS[number % len(PATHS)], (QUERY, "")[number % 2])
        sent = [*own, ("content-type", media)] if media else own
        wanted = [*headers, *HEADERS, *trial.values.headers(), *cookies]
        made.append(Exchange(what or "nothing", *request, sent, body, status, wanted, answer, times))
    return made


@check(
    "HTTP-13",
    profile="core",
    clause="contract: What a host does (Routes); http: HTTP routes; spec 5.2, 5.3, 5.4",
    causes=(
        "a middleware of the host reads or rewrites requests: leave those below /integrations, /v1 and /webhooks alone",
        "an error handler or middleware for the whole app rewrites answers: leave those of the plugins' routes alone",
        "the routes are called through an adapter that builds a new request: hand on scope, receive and send",
        "a proxy, a middleware or a client within the host repeats what was answered with an error",
        "several Set-Cookie headers are merged into one, or headers are kept in a dict: keep the list of headers",
    ),
    covers=("headers",),
)
async def exchanges_pass(trial: Trial) -> None:
    """Drawn requests reach the plugin once and whole, and its answers the client: path, query, headers, cookies, body, status."""
    await trial.seed()
    for number, exchange in enumerate(_exchanges(trial)):
        await _exchanged(trial, exchange, f"{trial.token}-{number}")


async def _exchanged(trial: Trial, exchange: Exchange, mark: str) -> None:
    asked = {"status": exchange.status, "headers": exchange.answers, "times": exchange.times, "mark": mark}
    asked["body_base64"] = base64.b64encode(exchange.answer).decode()
    path = f"{ECHO}/{quote(exchange.end, safe='/%')}"
    headers = [*exchange.headers, (ASKED, base64.b64encode(json.dumps(asked).encode()).decode())]
    answer = await trial.request(
        exchange.method,
        f"{path}?{exchange.query}" if exchange.query else path,
        who=trial.author,
        headers=headers,
        content=_pieces(exchange.body) if exchange.body is IN_PIECES[-1] else exchange.body,
    )
    came = [each.data["request"] for each in trial.session.control.events if each.data.get("mark") == mark]
    said = f"a {exchange.method} with {exchange.what}, which the plugin answers with {exchange.status},"
    if not came:
        causes = TOO_LARGE if len(exchange.body) > PIECE_BYTES else ()
        trial.answers(
            answer,
            False,
            f"{said} did not reach the plugin: it was answered {answer.status_code}",
            FROM_PLUGIN,
            causes,
        )
    trial.equal(len(came), 1, f"{said} did not reach the plugin once")
    _as_sent(trial, exchange, came[0])
    _as_answered(trial, exchange, answer)


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(body), PIECE_BYTES):
        yield body[at : at + PIECE_BYTES]


def _as_sent(trial: Trial, exchange: Exchange, came: Mapping[str, Any]) -> None:
    """Compare a request with what has reached the probe."""
    got, sent = str(came["path"]).partition(f"{ECHO}/")[2], unquote(exchange.end)
    trial.equal(
        got, sent, f"a path that ends with {exchange.end!r} reached the plugin changed{text_change(sent, got)}"
    )
    for name in ("method", "query"):
        trial.equal(
            came[name], getattr(exchange, name), f"the {name} of a {exchange.method} reached the plugin changed"
        )
    headers: dict[str, list[str]] = {}
    for name, value in came["headers"]:
        headers.setdefault(name.lower(), []).append(value)
    for name in {name: 0 for name, _ in exchange.headers}:
        values = ", ".join(value for each, value in exchange.headers if each == name)
        trial.equal(
            ", ".join(headers.get(name, ["(none)"])),
            values,
            f"the header {name} reached the plugin changed, with {exchange.what}",
        )
    how = "changed" if came["length"] == len(exchange.body) else "cut"
    trial.expect(
        came["digest"] == sha256(exchange.body).hexdigest(),
        f"a body with {exchange.what} reached the plugin {how}",
        expected=f"{len(exchange.body)} bytes: {exchange.body[:SHOWN_BYTES]!r}",
        actual=f"{came['length']} bytes: {base64.b64decode(came['body'])!r}",
        causes=TOO_LARGE if len(exchange.body) > PIECE_BYTES else (),
    )


def _as_answered(trial: Trial, exchange: Exchange, answer: httpx.Response) -> None:
    """Compare an answer with what the probe was asked for. A host may add headers; it changes none that the plugin gave."""
    status = exchange.status
    trial.equal(answer.status_code, status, f"an answer with status {status} got another one")
    trial.equal(
        answer.content,
        exchange.answer * exchange.times,
        f"the body of an answer with status {status} was changed",
    )
    for name, value in exchange.answers:
        got = answer.headers.get(name)
        if name == "location":
            # A framework may write it as an absolute address, which is the same place.
            asked = str(answer.request.url)
            got = value if urljoin(asked, got) == urljoin(asked, value) else got
        if name != "set-cookie":
            trial.equal(
                got,
                value,
                f"the header {name} of an answer with status {status} was {'dropped' if got is None else 'changed'}",
            )
    cookies = {
        first: {each.strip().lower() for each in rest.split(";")}
        for first, _, rest in (each.partition(";") for each in answer.headers.get_list("set-cookie"))
    }
    wanted = [value for name, value in exchange.answers if name == "set-cookie"]
    missing = [each for each in wanted if each not in cookies]
    lost = sorted({each for cookie in wanted for each in COOKIE - cookies.get(cookie, COOKIE)})
    trial.expect(
        not missing and not lost,
        f"the cookies {', '.join(missing)} of a plugin's answer did not reach the client each in a header of its own"
        if missing
        else f"the cookies of a plugin's answer lost their attributes {', '.join(lost)}",
        expected=[f"{each}; …" for each in wanted] if missing else sorted(COOKIE),
        actual=answer.headers.get_list("set-cookie"),
    )


@check(
    "HTTP-7",
    profile="core",
    clause="contract: What a host does (Credentials); http: HTTP routes; spec 5.4",
    causes=OPEN,
)
async def open_routes_stay_open(trial: Trial) -> None:
    """Requests that carry a signature, or what a plugin asks for, instead of the host's credential get through."""
    body = json.dumps({"type": "url_verification", "challenge": trial.token}, separators=(",", ":")).encode()
    stamp = int(time.time())
    signed = {
        "content-type": "application/json",
        "x-slack-request-timestamp": str(stamp),
        "x-slack-signature": signature(SIGNING_SECRET, stamp, body),
    }
    answer = await trial.request("POST", EVENTS, content=body, headers=signed)
    trial.answers(
        answer,
        answer.status_code == 200 and json_object(answer).get("challenge") == trial.token,
        f"a signed POST {EVENTS}, as the chat provider sends it, did not get the plugin's answer",
        "200 with the challenge",
    )
    answer = await trial.request("POST", "/webhooks/auth", json={})
    code = json_object(answer).get("code")
    trial.answers(
        answer,
        answer.status_code in {401, 503} and code in {"unauthorized", "not_configured"},
        "an unsigned POST /webhooks/auth did not get the plugin's answer",
        "the plugin's problem unauthorized, or not_configured without a secret",
    )
    for media_type in ("application/json", "application/x-www-form-urlencoded", "text/plain"):
        for method in ("POST", "PUT", "DELETE"):
            answer = await trial.request(method, ECHO, content=b"a=1", headers={"content-type": media_type})
            said = f"{method} {ECHO} as {media_type}, which asks for no credential, did not get the plugin's answer"
            passed = answer.status_code == 200 and json_object(answer).get("method") == method
            trial.answers(answer, passed, said, FROM_PLUGIN)
    answer = await trial.request("GET", "/integrations/chat/callback?state=none&code=none")
    trial.answers(
        answer,
        answer.status_code == 303 and "chat=error" in answer.headers.get("location", ""),
        "the page to which the chat provider sends the browser did not answer without a session",
        "303 to the dashboard with chat=error",
    )
    await trial.seed()
    answer = await trial.request("GET", INSTALL, who=trial.author)
    where = urlsplit(answer.headers.get("location", ""))
    provider = trial.host.running.env.settings["CHAT_AUTHORIZE_URL"]
    sent = answer.status_code == 302 and f"{where.scheme}://{where.netloc}{where.path}" == provider
    trial.answers(
        answer, sent, f"GET {INSTALL} does not send the browser to the chat provider", f"302 to {provider}"
    )


@check(
    "HTTP-9",
    profile="core",
    clause="contract: What a host does (Routes); http: Problems",
    causes=("the host's handler for paths that do not exist fails: the log has the error",),
)
async def unknown_paths_are_not_errors(trial: Trial) -> None:
    """A path below those of the plugins that nobody has is the host's to answer, and no server error."""
    await trial.seed()
    paths = (
        f"/integrations/nobody-{trial.token}/x",
        f"{ROUTES}/nothing",
        "/integrations",
        "/v1/webhooks/nothing",
    )
    asked = [
        (method, path, who) for path in paths for method in ("GET", "POST") for who in (trial.author, None)
    ]
    for method, path, who in (*asked, ("PUT", "/v1/webhooks/outbox", trial.author)):
        answer = await trial.request(method, path, who=who)
        said = f"{method} {path}, which nobody has, is a server error"
        trial.answers(answer, answer.status_code < 500, said, "404, or the host's own answer")


@check(
    ABOUT_IDS,
    profile="core",
    clause="contract: Ids",
    causes=(
        "ids of agents or experiences are made of paths or addresses: give them an id of their own, for example a number",
        "an id is longer than 255 characters, or has a NUL",
    ),
)
async def ids_can_be_used(trial: Trial) -> None:
    """Ids are texts of 1 to 255 characters, and those of agents and experiences can stand in a path."""
    survey = Survey(trial)
    flow = trial.flow(trial.step("a"), trial.probe("node"))
    experiences = (survey.experience(survey.row("row", survey.action("fired"))),)
    world = trial.world(flow, experiences=experiences if "logic" in trial.session.claims else ())
    await trial.seed(world=world)
    fault = trial.id_fault(world)
    trial.expect(
        not fault, fault, expected="ids as the contract allows them; all other characters are percent-encoded"
    )
