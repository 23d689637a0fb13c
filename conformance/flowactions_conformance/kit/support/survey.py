"""An experience with triggers, and the customer's backend that fires them."""

from __future__ import annotations

from typing import Any

import httpx

from flowactions_conformance.kit.support.compare import json_object
from flowactions_conformance.kit.trial import Trial
from flowactions_conformance.kit.under_test import Experience, Login, Trigger, TriggerAction

SECRET = "first secret"  # noqa: S105  made up
OTHER_SECRET = "Zweites “Geheimnis”"  # noqa: S105  made up


class Survey:
    """An experience of the check's own, and the backend that fires its triggers.

    Args:
        trial: the check's.
    """

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.id = trial.id("experience")
        self.backend = Login(
            kind="api", organization=trial.organization, id=trial.id("backend"), all_agents=True
        )

    async def seed(self, *triggers: Trigger) -> None:
        """Has the host make it, or replace it."""
        trial = self.trial
        await trial.seed(world=trial.world(experiences=(self.experience(*triggers),), logins=(self.backend,)))

    def experience(self, *triggers: Trigger) -> Experience:
        """Return it with these triggers."""
        trial = self.trial
        return Experience(id=self.id, organization=trial.organization, agent=trial.agent, triggers=triggers)

    def ref(self) -> dict[str, Any]:
        """Return what the references of all of its actions have, as the plugin gives them to the host."""
        of, trial = self.trial.of_host, self.trial
        ids = {
            "organizationId": of(trial.organization),
            "agentId": of(trial.agent),
            "experienceId": of(self.id),
        }
        return {**ids, "actionIndex": 0}

    def row(self, name: str, *actions: TriggerAction) -> Trigger:
        """Return a row of the experience's triggers."""
        return Trigger(id=self.trial.id(name), actions=actions)

    def group(self, name: str, *actions: TriggerAction, question: str | None = None) -> Trigger:
        """Return a trigger group of a node."""
        trial = self.trial
        asked = None if question is None else trial.id(question)
        return Trigger(id=trial.id(name), actions=actions, node=trial.id("survey-node"), question=asked)

    def action(self, name: str, secret: str | None = SECRET, **headers: str) -> TriggerAction:
        """Return an action that sends to the check's hook of that name."""
        return TriggerAction(url=self.trial.hook(name), secret=secret, headers=headers)

    async def fire(
        self, trigger: Trigger | str, index: int = 0, *, key: str | None = None, **fields: Any
    ) -> httpx.Response:
        """Call the logic-webhook endpoint as the customer's backend does.

        Args:
            trigger: one that was seeded, or the name of a row.
            index: of the action.
            key: the idempotency key, new by default.
            fields: further ones of the body, or in place of its own; ``None`` leaves one out.
        """
        trial = self.trial
        of_host = trial.of_host
        body: dict[str, Any] = {
            "idempotencyKey": key or trial.new_key(),
            "source": "experience_trigger",
            "actionIndex": index,
        }
        if isinstance(trigger, str):
            body["triggerRowId"] = of_host(trial.id(trigger))
        elif trigger.node is None:
            body["triggerRowId"] = of_host(trigger.id)
        else:
            body |= {
                "source": "node_trigger",
                "nodeId": of_host(trigger.node),
                "nodeTriggerGroupId": of_host(trigger.id),
                "questionId": None if trigger.question is None else of_host(trigger.question),
            }
        body |= fields
        path = trial.logic_path(trial.agent, str(body.pop("experience", self.id)))
        return await trial.request(
            "POST",
            path,
            who=self.backend,
            json={name: value for name, value in body.items() if value is not None},
        )

    async def fires(self, trigger: Trigger | str, index: int = 0, **fields: Any) -> dict[str, Any]:
        """Do that, and expect it to be taken.

        Raises:
            CheckFailed: it was not.
        """
        answer = await self.fire(trigger, index, **fields)
        self.trial.answers(answer, 202, "the logic webhook was not taken")
        data: dict[str, Any] = answer.json()["data"]
        return data

    def refused(self, what: str, code: str, answer: httpx.Response) -> None:
        """Expect an answer to be a 400 with this code.

        Raises:
            CheckFailed: it is not.
        """
        refused = answer.status_code == 400 and json_object(answer).get("code") == code
        said = f"a call for {what} was not refused as it should be"
        self.trial.answers(answer, refused, said, f"400 with the code {code}")
