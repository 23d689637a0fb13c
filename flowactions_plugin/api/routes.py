"""The routes of the outbox: list, show, retry, cancel, send again. An organization sees its own rows only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeAlias

import msgspec
from litestar import Request, Response, Router, get, post
from litestar.di import NamedDependency
from litestar.openapi.spec import Operation, Parameter, Schema
from litestar.openapi.spec.enums import OpenAPIType
from litestar.params import FromPath, HeaderParameter, JSONBody, QueryParameter

from flowactions_hookspecs import DashboardPrincipal
from flowactions_plugin.clock import ID_PATTERN
from flowactions_plugin.errors import ActionInvalid, EgressRefused, FilterInvalid
from flowactions_plugin.http.auth import PRINCIPAL, RouteGuard
from flowactions_plugin.http.openapi import openapi_spec, plugin_router
from flowactions_plugin.http.problems import WRONG_FORM, Problem
from flowactions_plugin.http.strict import Moment, integer, moment, text
from flowactions_plugin.insights.filters import FIELDS, MOST_WORDS, Filter, Term, parse, value_of
from flowactions_plugin.insights.port import Insights
from flowactions_plugin.insights.results import Counted, Delivery, DeliveryDetail, Kind
from flowactions_plugin.operations.bulk import MOST_RATE
from flowactions_plugin.operations.port import Operations
from flowactions_plugin.operators.audit import MOST_REASON
from flowactions_plugin.operators.scope import Actor, Scope
from flowactions_plugin.queue.keys import IdempotencyKeys, KeyUse

PAGE_LIMIT: Final = 100

_KEY: Final = re.compile(r"[ -~]{1,200}")

NO_NUL_PATTERN: Final = r"^[^\x00]*$"
"""PostgreSQL's text cannot hold NUL."""

Id: TypeAlias = Annotated[str, msgspec.Meta(pattern=ID_PATTERN, max_length=36)]
Word: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, pattern=NO_NUL_PATTERN)]
Code: TypeAlias = Annotated[int, msgspec.Meta(ge=100, le=999)]
OnceKey: TypeAlias = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key",
        description="1 to 200 printable ASCII characters that name this request. If you repeat the request with the same ones,"
        " nothing more is sent.",
    ),
]
"""The header with which a caller may repeat a request."""

IN_WORDS: Final = (
    "The filter in words: `error:http_5xx,timeout destination:hooks.example.com -type:order.placed`."
)

IN_JSON: Final = tuple(field for field in FIELDS if field.json)
"""The fields of the filter that the list and the bodies have by names of their own."""

LIST_QUERY: Final = {
    **{each.json: moment if each.edge else integer if each.name == "code" else text for each in IN_JSON},
    "q": text,
    "cursor": text,
    "limit": integer,
}
"""The filters of the list have the names that they have in bodies."""


@dataclass
class ListOperation(Operation):
    """The list in a host's OpenAPI document, with the fields of the filter."""

    def __post_init__(self) -> None:
        """Add the parameters."""
        fields = (Parameter(each.json, "query", Schema(type=OpenAPIType.STRING), each.help) for each in IN_JSON)
        self.parameters = [*fields, *(self.parameters or [])]


class DeliveryPage(msgspec.Struct, rename="camel"):
    """Rows, newest first; ``nextCursor`` leads to older ones."""

    data: list[Delivery]
    next_cursor: str | None


class OneDelivery(msgspec.Struct):
    """One row."""

    data: DeliveryDetail


class Cancelled(msgspec.Struct):
    """Whether a waiting delivery was there to be cancelled."""

    id: str
    cancelled: bool


class CancelAnswer(msgspec.Struct):
    """The answer of a cancellation."""

    data: Cancelled


class Requeued(msgspec.Struct):
    """Whether a dead row was there to be retried."""

    id: str
    requeued: bool


class RetryAnswer(msgspec.Struct):
    """The answer of a retry (§4.3)."""

    data: Requeued


class ResentDelivery(msgspec.Struct, rename="camel"):
    """Whether a delivered row was there to be sent again, and as which delivery it is."""

    id: str
    resent: bool
    resent_as: str | None


class ResendAnswer(msgspec.Struct):
    """The answer of what was sent again."""

    data: ResentDelivery


class _Many(msgspec.Struct, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Which deliveries: those that meet every filter that is given, and ``q``, which is one in words.

    ``rate``: deliveries per second at the most.
    """

    ids: Annotated[tuple[Id, ...], msgspec.Meta(min_length=1, max_length=1000)] | None = None
    q: Annotated[str, msgspec.Meta(max_length=MOST_WORDS)] = ""
    rate: Annotated[float, msgspec.Meta(ge=0.01, le=MOST_RATE)] | None = None
    reason: Annotated[str, msgspec.Meta(max_length=MOST_REASON, pattern=NO_NUL_PATTERN)] = ""

    def filter(self) -> Filter:
        """Return what has to be met."""
        given = {each.json: getattr(self, each.column + each.edge, None) for each in IN_JSON}
        return _filter(self.q, {**given, "ids": self.ids})


class _RetryMany(_Many, kw_only=True):
    """Which dead deliveries to retry, by one filter at least.

    Attributes:
        all: instead of any filter: every dead delivery of the organization.
        reset_attempts: whether each gets all of its attempts again; if not, one more.
    """

    all: bool = False
    reset_attempts: bool = False

    def filter(self) -> Filter:
        """Return what has to be met.

        Raises:
            Problem: it has no filter and does not say ``all``, or it has both.
        """
        wanted = super().filter()
        filtered = wanted != Filter()
        if filtered != self.all:
            return wanted
        message = "does not go with a filter"
        if not filtered:
            message = "name a filter, or set it to true to retry every dead delivery"
        raise _wrong("all", message)


class _ResendMany(_Many, kw_only=True):
    """Which delivered webhooks to send again. One of ``ids``, ``eventId``, ``idempotencyKey`` and ``createdFrom`` is needed."""


def _with_fields(base: type[_Many]) -> Any:
    """Return a body with the fields of the filter."""
    kinds = {"code": Code, **{each.name: Moment for each in IN_JSON if each.edge}}
    fields = [
        (
            each.column + each.edge,
            kinds.get(each.name, Word) | None,
            msgspec.field(default=None, name=each.json),
        )
        for each in IN_JSON
        if each.name != "status"
    ]
    kept = {"__doc__": base.__doc__}
    return msgspec.defstruct(base.__name__[1:], fields, bases=(base,), namespace=kept, kw_only=True)


if TYPE_CHECKING:
    RetryMany: TypeAlias = _RetryMany
    ResendMany: TypeAlias = _ResendMany
else:
    RetryMany, ResendMany = _with_fields(_RetryMany), _with_fields(_ResendMany)


class Begun(msgspec.Struct, rename="camel"):
    """How many are changed, and the bulk action that does it; without any, ``actionId`` is ``null``.

    ``delivered`` says of a retry how many delivered rows meet the filter, too: they are left out, and can be sent again. Where
    it is not ``exact``, they are so many at the least.
    """

    action_id: str | None
    counted: int
    delivered: Counted | None = None


class BegunAnswer(msgspec.Struct):
    """The answer when many are retried or sent again."""

    data: Begun


class Ports(NamedTuple):
    """What the routes use.

    Attributes:
        insights: finds rows.
        operations: changes them.
        keys: the idempotency keys of callers.
    """

    insights: Insights
    operations: Operations
    keys: IdempotencyKeys


@get(
    "/",
    summary="List deliveries",
    operation_class=ListOperation,
    **openapi_spec("dashboard", {}, query=LIST_QUERY),
)
async def list_deliveries(
    principal: NamedDependency[DashboardPrincipal],
    ports: NamedDependency[Ports],
    request: Request[Any, Any, Any],
    q: Annotated[str, QueryParameter(description=IN_WORDS)] = "",
    cursor: Annotated[str | None, QueryParameter(pattern=ID_PATTERN)] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=PAGE_LIMIT)] = 50,
) -> DeliveryPage:
    """List the organization's deliveries, newest first (§4.3).

    With a filter that no index serves, a page reads back some thousand deliveries: it may be short, or empty, and
    ``nextCursor`` leads on as long as there are older ones.
    """
    wanted = _filter(q, {each.json: request.query_params.get(each.json) for each in IN_JSON})
    try:
        page = await ports.insights.deliveries(Scope(principal.organization_id), wanted, cursor, limit)
    except FilterInvalid as exc:
        raise _wrong("cursor", str(exc).removeprefix("cursor: ")) from None
    return DeliveryPage(list(page.rows), page.next_cursor)


@get(
    "/{delivery_id:str}",
    summary="Show a delivery with its attempts",
    **openapi_spec("dashboard", {}, "not_found"),
)
async def show_delivery(
    principal: NamedDependency[DashboardPrincipal],
    ports: NamedDependency[Ports],
    delivery_id: FromPath[str],
) -> OneDelivery:
    """Show one delivery: what it sends, and each attempt with the answer's first 2 KiB."""
    found = await ports.insights.delivery(Scope(principal.organization_id), delivery_id)
    if found is None:
        raise Problem("not_found", "No delivery has this id.")
    return OneDelivery(found.row)


@post(
    "/{delivery_id:str}/cancel",
    status_code=200,
    summary="Cancel a waiting delivery",
    **openapi_spec(
        "dashboard",
        {404: (CancelAnswer, "No delivery with this id waits for an attempt: `cancelled` is false.")},
        changes=True,
    ),
)
async def cancel_delivery(
    principal: NamedDependency[DashboardPrincipal],
    ports: NamedDependency[Ports],
    delivery_id: FromPath[str],
) -> Response[CancelAnswer]:
    """End a delivery that waits for its next attempt; no worker begins it any more."""
    done = await ports.operations.one(_scope(principal), "cancel", delivery_id, _actor(principal))
    return Response(CancelAnswer(Cancelled(delivery_id, done is not None)), status_code=_status(done))


@post(
    "/{delivery_id:str}/retry",
    status_code=200,
    summary="Retry a dead delivery",
    **openapi_spec(
        "dashboard",
        {404: (RetryAnswer, "No dead delivery has this id: `requeued` is false.")},
        changes=True,
    ),
)
async def retry_delivery(
    principal: NamedDependency[DashboardPrincipal],
    ports: NamedDependency[Ports],
    delivery_id: FromPath[str],
) -> Response[RetryAnswer]:
    """Make a dead delivery due now; it gets one more attempt (§4.3)."""
    done = await ports.operations.one(_scope(principal), "retry", delivery_id, _actor(principal))
    return Response(RetryAnswer(Requeued(delivery_id, done is not None)), status_code=_status(done))


@post(
    "/{delivery_id:str}/resend",
    status_code=200,
    summary="Send a delivered webhook again",
    **openapi_spec(
        "dashboard",
        {
            404: (
                ResendAnswer,
                "No delivered webhook with this id is kept: `resent` is false. Retention and purges remove them.",
            )
        },
        changes=True,
    ),
)
async def resend_delivery(
    principal: NamedDependency[DashboardPrincipal],
    ports: NamedDependency[Ports],
    delivery_id: FromPath[str],
    key: OnceKey = None,
) -> Response[ResendAnswer]:
    """Send a delivered webhook again, as a new delivery with the same event id, headers and body.

    It is signed with the present secret. Receivers that dedupe by event id ignore it if they have processed the first one.
    Each call sends it once more, except with an `Idempotency-Key` that was used for this delivery before.
    """
    once = _once(ports.keys, principal.organization_id, key, f"resend:{delivery_id}")
    new_id = await ports.operations.one(_scope(principal), "resend", delivery_id, _actor(principal), once=once)
    resent = ResentDelivery(delivery_id, new_id is not None, new_id)
    return Response(ResendAnswer(resent), status_code=_status(new_id))


@post(
    "/retry",
    status_code=202,
    summary="Retry dead deliveries",
    **openapi_spec(
        "dashboard",
        {},
        changes=True,
        query={},
        body='a JSON object with a filter, or {"all": true} for every dead delivery',
    ),
)
async def retry_deliveries(
    principal: NamedDependency[DashboardPrincipal],
    ports: NamedDependency[Ports],
    data: JSONBody[RetryMany],
    key: OnceKey = None,
) -> BegunAnswer:
    """Retry the dead deliveries that meet every given filter; without a filter, say ``all``.

    Workers carry it out as a bulk action, at the rate that is given. Its page can stop it. Each delivery gets one more attempt, or with ``resetAttempts`` all of its attempts again. An `Idempotency-Key` that was used
    before is answered as the first call.
    """
    return await _begin(principal, ports, "retry", data, key, reset_attempts=data.reset_attempts)


@post(
    "/resend",
    status_code=202,
    summary="Send delivered webhooks again",
    **openapi_spec(
        "dashboard",
        {},
        changes=True,
        query={},
        body="a JSON object with ids, an eventId or createdFrom, and further filters",
    ),
)
async def resend_deliveries(
    principal: NamedDependency[DashboardPrincipal],
    ports: NamedDependency[Ports],
    data: JSONBody[ResendMany],
    key: OnceKey = None,
) -> BegunAnswer:
    """Send the delivered webhooks again that meet every given filter, as new deliveries with the same event ids.

    Workers carry it out as a bulk action, at the rate that is given. Its page can stop it. Each call begins another action, except with an `Idempotency-Key` that was used before: it is answered as the first one.
    """
    return await _begin(principal, ports, "resend", data, key)


async def _begin(
    principal: DashboardPrincipal,
    ports: Ports,
    kind: Kind,
    data: _Many,
    key: str | None,
    *,
    reset_attempts: bool = False,
) -> BegunAnswer:
    """Begin a bulk action on what meets a filter now."""
    wanted, scope = data.filter(), _scope(principal)
    once = _once(ports.keys, principal.organization_id, key, f"{kind}:")
    try:
        preview = await ports.operations.preview(scope, kind, wanted)
        action = await ports.operations.change(
            scope,
            preview.chosen,
            _actor(principal),
            data.reason,
            reset_attempts=reset_attempts,
            rate=data.rate,
            once=once,
        )
    except ActionInvalid as exc:
        raise Problem("invalid_request", str(exc)) from None
    if action is None:
        return BegunAnswer(Begun(None, 0, preview.delivered))
    return BegunAnswer(Begun(action.id, action.counted, preview.delivered))


def outbox_router(guard: RouteGuard, ports: Ports) -> Router:
    """Build the router of the outbox; ``guard`` decides who may call."""
    return plugin_router(
        "/v1/webhooks/outbox",
        *(list_deliveries, retry_deliveries, resend_deliveries),
        *(show_delivery, cancel_delivery, retry_delivery, resend_delivery),
        dependencies={"principal": PRINCIPAL, "ports": ports},
        guards=[guard.guard()],
        tags=["Webhook outbox"],
    )


def _scope(principal: DashboardPrincipal) -> Scope:
    return Scope(principal.organization_id)


def _actor(principal: DashboardPrincipal) -> Actor:
    return Actor(principal.user_id, principal.user_name, "dashboard")


def _status(done: str | None) -> int:
    return 404 if done is None else 200


def _wrong(path: str, message: str) -> Problem:
    return Problem("invalid_request", WRONG_FORM, [{"path": path, "message": message}])


def _once(keys: IdempotencyKeys, organization_id: str, key: str | None, what: str) -> KeyUse | None:
    """Return the key with which a caller does something once; ``None``: without one."""
    if key is None:
        return None
    if not _KEY.fullmatch(key):
        raise _wrong("Idempotency-Key", "must be 1 to 200 printable ASCII characters")
    return KeyUse(keys, organization_id, what, key)


def _filter(words: str, given: Mapping[str, Any]) -> Filter:
    """Return the filter of words and of values by their names in JSON, each read as `FIELDS` says.

    Raises:
        Problem: a value cannot be used.
    """
    try:
        terms = list(parse(words).terms)
    except FilterInvalid as exc:
        raise _wrong("q", str(exc)) from None
    for field in FIELDS:
        value = given.get(field.json or "ids" if field.name != "organization" else "")
        if value is None:
            continue
        if any(term.name == field.name and not term.excluded for term in terms):
            raise _wrong("q", f"{field.name}: is given twice")
        texts = (
            value
            if isinstance(value, tuple)
            else [value.isoformat() if isinstance(value, datetime) else str(value)]
        )
        try:
            terms.append(Term(field.name, tuple(value_of(field, each) for each in texts)))
        except (ValueError, EgressRefused) as exc:
            raise _wrong(field.json or "ids", str(exc)) from None
    return Filter.made(terms)
