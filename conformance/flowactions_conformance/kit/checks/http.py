"""HTTP: the plugins' routes are there, and requests and answers pass through the host unchanged."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, unquote, urljoin, urlsplit

import httpx

from flowactions_conformance.chat_provider.app import SIGNING_SECRET
from flowactions_conformance.chat_provider.events import signature
from flowactions_conformance.kit.probing.plugin import NODE, ROUTES
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
    LARGEST,
    METHODS,
    PATHS,
    PIECE_BYTES,
    PIECES,
    PROBLEM,
    QUERY,
    REDIRECTS,
)
from flowactions_conformance.kit.support.survey import Survey
from flowactions_conformance.kit.trial import ABOUT_IDS, Trial

ECHO: Final = f"{ROUTES}/echo"
ANSWER: Final = f"{ROUTES}/answer"
EVENTS: Final = "/integrations/chat/events"
FROM_PLUGIN: Final = "200 from the plugin"

PASSING: Final = (
    "a middleware of the host reads or rewrites requests: leave those below /integrations, /v1 and /webhooks alone",
    "the routes are called through an adapter that builds a new request: hand on scope, receive and send",
)
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


async def _echo(
    trial: Trial,
    method: str = "POST",
    query: str = "",
    *,
    what: str = "",
    end: str = "",
    causes: Sequence[str] = (),
    **sending: Any,
) -> Mapping[str, Any]:
    """Has the probe tell what has reached it; ``what`` is sent, for the message of a failure, with its causes."""
    path = f"{ECHO}/{quote(end, safe='/%')}" if end else ECHO
    path = f"{path}?{query}" if query else path
    answer = await trial.request(method, path, who=trial.author, **sending)
    told = (
        f"the answer to {method} {ECHO} was changed: it is no JSON any more"
        if answer.status_code == 200
        else f"{what} did not reach the plugin: it was answered {answer.status_code}"
        if what
        else f"{method} {ECHO}, a route of the probe plugin, does not answer"
    )
    trial.answers(answer, answer.status_code == 200 and json_object(answer), told, FROM_PLUGIN, causes)
    seen: Mapping[str, Any] = answer.json()
    return seen


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


@check(
    "HTTP-3",
    profile="core",
    clause="contract: What a host does (Routes); spec 5.3, 5.4",
    causes=PASSING,
    covers=("headers",),
)
async def request_bodies_pass(trial: Trial) -> None:
    """The bytes of a request's body, and its headers, reach the plugin unchanged."""
    await trial.seed()
    await _small_bodies(trial)
    await _repeated_headers(trial)
    await _large_bodies(trial)


async def _small_bodies(trial: Trial) -> None:
    for what, media_type, body in BODIES:
        sent = {
            "content-type": media_type,
            **dict(trial.values.headers()),
            "svix-id": trial.token,
            "idempotency-key": f"007-{trial.token}",
            "svix-signature": "v1,Ab3+/Cd4==",
            "x-slack-signature": "v0=Ab3",
        }
        seen = await _echo(trial, what=f"a body with {what}", content=body, headers=sent)
        got = base64.b64decode(seen["body"])
        trial.equal(got, body, f"a body with {what} reached the plugin changed")
        headers = {name.lower(): value for name, value in seen["headers"]}
        for name, value in sent.items():
            trial.equal(headers.get(name), value, f"the header {name} reached the plugin changed, with {what}")


async def _repeated_headers(trial: Trial) -> None:
    seen = await _echo(trial, headers=[("x-kit-twice", "one"), ("x-kit-twice", "two")])
    twice = [value for name, value in seen["headers"] if name.lower() == "x-kit-twice"]
    trial.equal(
        ", ".join(twice), "one, two", "a header that was sent twice reached the plugin with one of its values"
    )


async def _large_bodies(trial: Trial) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(PIECES):
            yield bytes([number]) * PIECE_BYTES

    whole = b"".join([piece async for piece in pieces()])
    for what, media_type, content in (
        ("a body of a mebibyte, which came in pieces,", "application/octet-stream", pieces()),
        ("a body of two mebibytes, the largest that a route takes,", "application/json", LARGEST),
    ):
        seen = await _echo(
            trial, what=what, causes=TOO_LARGE, content=content, headers={"content-type": media_type}
        )
        expected = content if isinstance(content, bytes) else whole
        got = base64.b64decode(seen["body"])
        trial.expect(
            got == expected,
            f"{what} reached the plugin {'changed' if len(got) == len(expected) else 'cut'}",
            expected=f"{len(expected)} bytes",
            actual=f"{len(got)} bytes",
            causes=TOO_LARGE,
        )


@check("HTTP-4", profile="core", clause="contract: What a host does (Routes)", causes=PASSING)
async def method_and_query_pass(trial: Trial) -> None:
    """Each method, path and query, as it is written, reach the plugin unchanged."""
    await trial.seed()
    for end in PATHS:
        seen = await _echo(trial, end=end, what=f"a path that ends with {end!r}")
        got, sent = str(seen["path"]).partition(f"{ECHO}/")[2], unquote(end)
        trial.equal(
            got, sent, f"a path that ends with {end!r} reached the plugin changed{text_change(sent, got)}"
        )
    for method in METHODS:
        seen = await _echo(trial, method, QUERY)
        trial.equal(seen["method"], method, f"a {method} reached the plugin as another method")
        trial.equal(seen["query"], QUERY, f"the query of a {method} reached the plugin changed")


@check(
    "HTTP-5",
    profile="core",
    clause="contract: What a host does (Routes)",
    causes=REWRITING,
    covers=("headers",),
)
async def answers_pass(trial: Trial) -> None:
    """Status, headers and bytes of a plugin's answer reach the client unchanged, whatever the status."""
    await trial.seed()
    for status, media_type, body in ANSWERS:
        wanted = [*HEADERS, *trial.values.headers(), ("content-type", media_type)]
        answer = await _answer(trial, status, wanted, body)
        trial.equal(answer.status_code, status, f"an answer with status {status} got another one")
        trial.equal(answer.content, body, f"the body of an answer with status {status} was changed")
        for name, value in wanted:
            got = answer.headers.get(name)
            # A host may add headers. It changes none that the plugin gave.
            how = "dropped" if got is None else "changed"
            trial.equal(got, value, f"the header {name} of an answer with status {status} was {how}")


@check(
    "HTTP-6",
    profile="core",
    clause="contract: What a host does (Routes); http: Problems; spec 7.3",
    causes=REWRITING,
)
async def problems_pass(trial: Trial) -> None:
    """The problems that the plugin answers reach the client as it wrote them."""
    await trial.seed()
    missing = f"/v1/webhooks/outbox/{trial.id('missing')}"
    text: dict[str, Any] = {"content": "no JSON", "headers": {"content-type": "text/plain"}}
    for method, path, who, sending, status, code in (
        ("GET", "/v1/webhooks/outbox?unknown=1", trial.author, {}, 400, "invalid_request"),
        ("POST", EVENTS, None, {}, 401, "unauthorized"),
        ("GET", missing, trial.author, {}, 404, "not_found"),
        ("POST", "/integrations/nodes/check", trial.author, {}, 400, "invalid_request"),
        ("POST", "/integrations/nodes/check", trial.author, text, 415, "unsupported_media_type"),
    ):
        answer = await trial.request(method, path, who=who, **sending)
        trial.equal(answer.status_code, status, f"the problem of {method} {path} has another status")
        problem = json_object(answer)
        trial.expect(
            answer.headers.get("content-type", "").startswith(PROBLEM) and problem.get("code") == code,
            f"the problem that the plugin answers to {method} {path} was rewritten",
            expected=f"{PROBLEM} with the code {code!r}",
            actual=f"{answer.headers.get('content-type')} {answer.text[:500]}",
        )
        lacking = [name for name in ("type", "title", "status", "detail") if name not in problem]
        trial.expect(not lacking, f"the problem of {method} {path} lacks {', '.join(lacking)}", actual=problem)
        trial.equal(answer.headers.get("cache-control"), "no-store", "a problem may be stored by caches")


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


@check(
    "HTTP-8",
    profile="core",
    clause="contract: What a host does (Routes); http: HTTP routes; spec 5.2",
    causes=(
        "the host follows or rewrites redirects",
        "several Set-Cookie headers are merged into one, or headers are kept in a dict: keep the list of headers",
    ),
)
async def redirects_and_cookies_pass(trial: Trial) -> None:
    """Redirects reach the client with their Location, and each cookie in a Set-Cookie of its own."""
    await trial.seed()
    for status, location in REDIRECTS:
        cookies = {f"{name}-{trial.token}": name for name in ("one", "two", "three")}
        wanted = [("location", location), *(("set-cookie", f"{key}={value}") for key, value in cookies.items())]
        answer = await _answer(trial, status, wanted, b"")
        trial.equal(answer.status_code, status, "a redirect was not handed on")
        # A framework may write it as an absolute address, which is the same place.
        asked = str(answer.request.url)
        trial.equal(
            urljoin(asked, answer.headers.get("location")),
            urljoin(asked, location),
            f"the Location of a {status} was changed",
        )
        got = {
            first: {each.strip().lower() for each in rest.split(";")}
            for first, _, rest in (each.partition(";") for each in answer.headers.get_list("set-cookie"))
        }
        missing = [f"{key}={value}" for key, value in cookies.items() if f"{key}={value}" not in got]
        trial.expect(
            not missing,
            f"the cookies {', '.join(missing)} of a plugin's answer did not reach the client each in a header of its own",
            expected=[f"{key}={value}; …" for key, value in cookies.items()],
            actual=answer.headers.get_list("set-cookie"),
        )
        lost = sorted({each for cookie in cookies.items() for each in COOKIE - got["=".join(cookie)]})
        trial.expect(
            not lost,
            f"the cookies of a plugin's answer lost their attributes {', '.join(lost)}",
            expected=sorted(COOKIE),
            actual=answer.headers.get_list("set-cookie"),
        )
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
    "HTTP-11",
    profile="core",
    clause="contract: What a host does (Routes)",
    causes=(
        "a proxy before the host asks another process after an error: let it repeat only what did not reach the host",
        "a middleware or a client within the host repeats requests that were answered with an error",
    ),
)
async def requests_pass_once(trial: Trial) -> None:
    """A request reaches the plugin once, also when the plugin answers that it failed."""
    await trial.seed()
    for status in (500, 502, 503, 504):
        mark = f"{trial.token}-{status}"
        await _answer(trial, status, [], b"failed", mark=mark)
        times = sum(event.data.get("mark") == mark for event in trial.session.control.events)
        trial.equal(times, 1, f"a POST that the plugin answered with {status} did not reach it once")


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


async def _answer(
    trial: Trial, status: int, headers: Sequence[tuple[str, str]], body: bytes, mark: str | None = None
) -> httpx.Response:
    """Has the probe answer, and report with a mark that it does."""
    wanted = {
        "status": status,
        "body_base64": base64.b64encode(body).decode(),
        "headers": list(headers),
        "mark": mark,
    }
    return await trial.request("POST", ANSWER, who=trial.author, json=wanted)
