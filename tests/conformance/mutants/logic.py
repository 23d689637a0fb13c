"""Mutants of logic webhooks: which action the host finds, what it says of it, and what its triggers dispatch."""

from __future__ import annotations

import json
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Any

from msgspec.structs import replace

from flowactions_conformance.reference_host import store as tables
from flowactions_conformance.reference_host.host import ReferenceHost
from flowactions_conformance.reference_host.testing import ReferenceDriver
from flowactions_hookspecs import (
    FlowNodeOrigin,
    LogicAction,
    LogicActionRef,
    NodeTriggerRef,
    Origin,
    OriginGone,
    QuestionRequired,
)
from tests.conformance.mutants.altered import alter_host
from tests.conformance.mutants.mutant import changed, mutant


def url_of_the_request(driver: ReferenceDriver) -> None:
    given: ContextVar[str | None] = ContextVar("given", default=None)

    class Broken(ReferenceHost):
        async def logic_action(self, ref: LogicActionRef) -> LogicAction | None:
            found = await super().logic_action(ref)
            url = given.get()
            return found if found is None or url is None else replace(found, url=url)

    app = driver.app

    async def reading(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or not scope["path"].endswith("/logic-webhook"):
            await app(scope, receive, send)
            return
        message = await receive()
        given.set(json.loads(message["body"]).get("url"))

        async def again() -> Any:
            return message

        await app(scope, again, send)

    alter_host(driver, Broken)
    driver.app = reading


def first_action_always(driver: ReferenceDriver) -> None:
    class Broken(ReferenceHost):
        async def logic_action(self, ref: LogicActionRef) -> LogicAction | None:
            return await super().logic_action(replace(ref, action_index=0))

    alter_host(driver, Broken)


def index_error(driver: ReferenceDriver) -> None:
    class Broken(ReferenceHost):
        async def logic_action(self, ref: LogicActionRef) -> LogicAction | None:
            found = await super().logic_action(ref)
            if found is None:
                raise IndexError("list index out of range")
            return found

    alter_host(driver, Broken)


def question_not_asked(driver: ReferenceDriver) -> None:
    class Broken(ReferenceHost):
        async def logic_action(self, ref: LogicActionRef) -> LogicAction | None:
            try:
                return await super().logic_action(ref)
            except QuestionRequired:
                return None

    alter_host(driver, Broken)


def question_not_compared(driver: ReferenceDriver) -> None:
    class Broken(ReferenceHost):
        async def logic_action(self, ref: LogicActionRef) -> LogicAction | None:
            if isinstance(ref, NodeTriggerRef) and ref.question_id is not None:
                for question in await self._questions(ref):
                    found = await super().logic_action(replace(ref, question_id=question))
                    if found is not None:
                        return found
            return await super().logic_action(ref)

        async def _questions(self, ref: NodeTriggerRef) -> list[str]:
            rows = await self.store.find(tables.experiences, id=ref.experience_id)
            return [
                group["questionId"]
                for row in rows
                for group in row["node_triggers"].values()
                if group["questionId"]
            ]

    alter_host(driver, Broken)


def headers_dropped(driver: ReferenceDriver) -> None:
    class Broken(ReferenceHost):
        async def logic_action(self, ref: LogicActionRef) -> LogicAction | None:
            found = await super().logic_action(ref)
            return None if found is None else LogicAction(url=found.url, secret=found.secret)

    alter_host(driver, Broken)


def answers_in_an_envelope(driver: ReferenceDriver) -> None:
    app = driver.app

    async def wrapped(scope: Any, receive: Any, send: Any) -> None:
        async def answer(message: Any) -> None:
            if message["type"] == "http.response.start" and message["status"] == 204:
                length = [(b"content-length", b"2"), (b"content-type", b"application/json")]
                message = {**message, "status": 200, "headers": length}
                await send(message)
                await send({"type": "http.response.body", "body": b"{}"})
                empty.append(True)
            elif not empty:
                await send(message)

        empty: list[bool] = []
        await app(scope, receive, answer)

    driver.app = wrapped


def secrets_of_flow_nodes_only(driver: ReferenceDriver) -> None:
    class Broken(ReferenceHost):
        async def signing_secret(self, origin: Origin) -> str | None:
            if not isinstance(origin, FlowNodeOrigin):
                raise OriginGone
            return await super().signing_secret(origin)

    alter_host(driver, Broken)


def firing_id_is_the_actions(driver: ReferenceDriver) -> None:
    actions = driver.made.actions
    dispatch = actions.dispatch

    async def constant(ref: LogicActionRef, **options: Any) -> Any:
        return await dispatch(ref, **{**options, "firing_id": ref.experience_id})

    actions.dispatch = constant  # type: ignore[method-assign]


def _local_time(driver: ReferenceDriver) -> None:
    actions = driver.made.actions
    dispatch = actions.dispatch

    async def at_another_time(
        ref: LogicActionRef, *, firing_id: str, occurred_at: datetime, **more: Any
    ) -> Any:
        east = occurred_at + timedelta(hours=2)
        return await dispatch(ref, firing_id=firing_id, occurred_at=east, **more)

    actions.dispatch = at_another_time  # type: ignore[method-assign]


MUTANTS = [
    mutant(
        "url-of-the-request",
        "The webhook goes to the URL that the caller names.",
        changed(url_of_the_request),
        kills="LOGIC-2",
        spares="LOGIC-1 LOGIC-5",
        message="reads the destination from the request",
    ),
    mutant(
        "first-action-always",
        "The action's index is not looked at.",
        changed(first_action_always),
        kills="LOGIC-3 LOGIC-5 LOGIC-7",
        spares="LOGIC-1",
        message="a call for an action behind the last one was not refused",
    ),
    mutant(
        "index-error",
        "What is not there is an exception.",
        changed(index_error),
        kills="LOGIC-3 LOGIC-4 LOGIC-6",
        spares="LOGIC-1",
        message="logic_action raises LookupError or IndexError",
    ),
    mutant(
        "question-not-asked",
        "A survey question's trigger without its question is no action.",
        changed(question_not_asked),
        kills="LOGIC-4",
        spares="LOGIC-1 LOGIC-3",
        message="raise QuestionRequired",
    ),
    mutant(
        "question-not-compared",
        "A survey question's trigger fires for any question.",
        changed(question_not_compared),
        kills="LOGIC-4",
        spares="LOGIC-1 LOGIC-3",
        message="a call for a survey question's trigger with another question was not refused",
    ),
    mutant(
        "action-headers-dropped",
        "The action's headers are left out.",
        changed(headers_dropped),
        kills="LOGIC-1 LOGIC-7",
        spares="LOGIC-2",
        message="the action's header is missing",
    ),
    mutant(
        "answers-in-an-envelope",
        "A middleware gives every answer a status of 200 and a body.",
        changed(answers_in_an_envelope),
        kills="LOGIC-5",
        spares="LOGIC-1",
        message="a repeated key was not answered with 204",
    ),
    mutant(
        "secrets-of-flow-nodes-only",
        "The origin of a logic action counts as gone.",
        changed(secrets_of_flow_nodes_only),
        kills="LOGIC-1 LOGIC-2 LOGIC-3 LOGIC-4 LOGIC-5 LOGIC-6 LOGIC-7",
        spares="EAGER-6",
        message="signing_secret knows only the origins of flow nodes",
    ),
    mutant(
        "firing-id-is-the-actions",
        "All firings of an action have one id.",
        changed(firing_id_is_the_actions),
        kills="LOGIC-7",
        spares="LOGIC-1",
        message="two firings have the same event id",
    ),
    mutant(
        "local-time",
        "A local time is given as if it were UTC.",
        changed(_local_time),
        kills="LOGIC-7",
        spares="LOGIC-1 LOGIC-5",
        message="has another occurred_at than the time at which it fired",
    ),
]
