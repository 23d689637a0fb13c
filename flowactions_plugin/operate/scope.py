"""Who operates, and what they may see."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

Role: TypeAlias = Literal["dashboard", "operator", "command"]
"""How somebody acts: as a principal of an organization's dashboard, as the host's operator, or by the command line."""


class Scope(NamedTuple):
    """What a person may see and change.

    Attributes:
        organization_id: only this organization's; ``None``: that of all organizations.
    """

    organization_id: str | None = None

    def allows(self, organization_id: str) -> bool:
        """Return whether something of an organization is within the scope."""
        return self.organization_id is None or self.organization_id == organization_id


class Actor(NamedTuple):
    """Who acts, as the audit names them.

    Attributes:
        id: the host's id of the person; for a command, the user of the operating system.
        name: shown to people.
        role: how they act.
    """

    id: str
    name: str
    role: Role
