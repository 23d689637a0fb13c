"""Who operates, and what they may see."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple, TypeAlias

Role: TypeAlias = Literal["dashboard", "operator", "command", "automatic"]
"""How somebody acts: as a principal of an organization's dashboard, as the host's operator, or by the command line.
``automatic``: nobody does, this plugin acts by a setting."""

OPEN: Final[frozenset[str]] = frozenset({"dashboard", "automatic"})
"""The roles that organizations are shown, and whose pauses they may end; of the others, people of the operator act."""


class Scope(NamedTuple):
    """What a person may see and change.

    Attributes:
        organization_id: only this organization's; ``None``: that of all organizations.
        hides_operators: whether who looks is shown operators and commands as ``operator``, without their names, and reads
            reasons as an organization does.
    """

    organization_id: str | None = None
    hides_operators: bool = False

    @property
    def reads_inner(self) -> bool:
        """Whether who looks may read in reasons what concerns this side: addresses, settings, errors, names of machines."""
        return self.organization_id is None and not self.hides_operators

    def allows(self, organization_id: str) -> bool:
        """Return whether something of an organization is within the scope."""
        return self.organization_id is None or self.organization_id == organization_id

    def shown(self, actor: Actor) -> Actor:
        """Return who acted as the person who looks may see them."""
        if not self.hides_operators or actor.role in OPEN or actor == NOBODY:
            return actor
        return Actor("", "operator", "operator")


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

    @property
    def public_name(self) -> str:
        """The name in texts that are stored with rows, which tenants read: of operators and commands there is none."""
        return self.name if self.role == "dashboard" and self.name else "an operator"


NOBODY: Final = Actor("", "flowactions", "command")
"""Who stops an action that cannot be carried out."""

AUTOMATIC: Final = Actor("", "flowactions", "automatic")
"""Who pauses destinations that fail, and resumes them."""
