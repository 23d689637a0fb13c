"""Two organizations, for checks of what is whose."""

from __future__ import annotations

from flowactions_conformance.kit.trial import Trial
from flowactions_conformance.kit.under_test import Action, Agent, Flow, Login, Organization, World


class Pair:
    """Two organizations, each with an agent, a person, a backend and a flow.

    Args:
        trial: its own organization is the first.
    """

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.other = trial.id("other-org")
        self.other_agent = trial.id("other-agent")
        self.stranger = Login(kind="dashboard", organization=self.other, id=trial.id("stranger"))

    def backend(self, organization: str) -> Login:
        """Return an organization's backend, which may address all of its agents."""
        return Login(kind="api", organization=organization, id=f"backend-of-{organization}", all_agents=True)

    def flow(self, node: Action, *, other: bool) -> Flow:
        """Return a flow of one of the two."""
        if other:
            return self.trial.flow(node, name="other-flow", organization=self.other, agent=self.other_agent)
        return self.trial.flow(node)

    def world(self, *flows: Flow, agents: tuple[Agent, ...] = (), logins: tuple[Login, ...] = ()) -> World:
        """Return both organizations with these flows."""
        return self.trial.world(
            *flows,
            organizations=(Organization(id=self.other, name="Other"),),
            agents=(Agent(id=self.other_agent, name="Other", organization=self.other), *agents),
            logins=(self.stranger, *logins),
        )
