"""What the fake provider knows: workspaces with channels and members, tokens, and the messages posted."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterator, Sequence

import msgspec

ALL_SCOPES = ("chat:write", "channels:read", "groups:read", "users:read", "im:write")


class Channel(msgspec.Struct, kw_only=True):
    """A channel; the app can post to it once it is a member."""

    id: str
    name: str
    is_private: bool = False
    is_archived: bool = False
    is_member: bool = True


class Member(msgspec.Struct, kw_only=True):
    """A member of a workspace."""

    id: str
    name: str
    real_name: str
    is_bot: bool = False
    deleted: bool = False


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message as it was posted."""

    workspace: str
    channel_id: str
    channel: str
    text: str
    ts: str


class Workspace(msgspec.Struct, kw_only=True):
    """A workspace.

    Args:
        page_size: the most that one page of a listing holds, whatever the caller asks for.
        empty_pages: how many empty pages come before the first channel, each with a cursor.
    """

    id: str
    name: str
    bot_user_id: str
    channels: list[Channel]
    members: list[Member]
    page_size: int = 999
    empty_pages: int = 0


class Token(msgspec.Struct, kw_only=True):
    """A bot token. ``dead`` is the error that its use is answered with."""

    value: str
    workspace: Workspace
    scopes: tuple[str, ...] = ALL_SCOPES
    dead: str | None = None


class Code(msgspec.Struct, frozen=True):
    """An OAuth code that has not been exchanged yet."""

    workspace: Workspace
    redirect_uri: str
    scopes: tuple[str, ...]


class State:
    """Everything that one fake provider remembers.

    Args:
        workspaces: at least one.
        first_ts: the whole part of the first message's timestamp.
    """

    def __init__(self, workspaces: Sequence[Workspace], first_ts: int) -> None:
        self.workspaces = list(workspaces)
        self.messages: list[Message] = []
        self._tokens: dict[str, Token] = {}
        self._codes: dict[str, Code] = {}
        self._timestamps: Iterator[str] = (f"{first_ts + n // 1000}.{n % 1000:06d}" for n in itertools.count(1))

    def add_token(
        self, workspace: Workspace, value: str | None = None, scopes: Sequence[str] = ALL_SCOPES
    ) -> Token:
        """Issue a bot token for a workspace."""
        token = Token(value=value or f"xoxb-{secrets.token_hex(12)}", workspace=workspace, scopes=tuple(scopes))
        self._tokens[token.value] = token
        return token

    def token(self, value: str) -> Token | None:
        """Find a token; a token that was never issued but is written for a fault counts as the first workspace's."""
        found = self._tokens.get(value)
        if found is None and value.startswith("xoxb-fault-"):
            return Token(value=value, workspace=self.workspaces[0])
        return found

    def tokens_of(self, workspace: Workspace) -> list[Token]:
        """List the tokens that were issued for a workspace."""
        return [token for token in self._tokens.values() if token.workspace is workspace]

    def add_code(self, workspace: Workspace, redirect_uri: str, scopes: Sequence[str]) -> str:
        """Issue an OAuth code."""
        value = secrets.token_urlsafe(16)
        self._codes[value] = Code(workspace, redirect_uri, tuple(scopes))
        return value

    def take_code(self, value: str) -> Code | None:
        """Use an OAuth code up."""
        return self._codes.pop(value, None)

    def post(self, workspace: Workspace, channel_id: str, channel: str, text: str) -> Message:
        """Keep a message."""
        message = Message(
            workspace=workspace.name,
            channel_id=channel_id,
            channel=channel,
            text=text,
            ts=next(self._timestamps),
        )
        self.messages.append(message)
        return message


def sample_workspace(name: str = "Acme", team_id: str = "T0ACME") -> Workspace:
    """Make a small workspace with every kind of channel and member."""
    return Workspace(
        id=team_id,
        name=name,
        bot_user_id=f"UBOT{team_id[2:]}",
        channels=[
            Channel(id="C0GENERAL", name="general"),
            Channel(id="C0ORDERS", name="orders"),
            Channel(id="C0RANDOM", name="random", is_member=False),
            Channel(id="G0LEADS", name="leads", is_private=True),
            Channel(id="C0OLD", name="old-project", is_archived=True),
        ],
        members=[
            Member(id="U0GRACE", name="grace", real_name="Grace Example"),
            Member(id="U0LINUS", name="linus", real_name="Linus Example"),
            Member(id="U0GONE", name="gone", real_name="Gone Example", deleted=True),
            Member(id="U0ROBOT", name="robot", real_name="Robot", is_bot=True),
            Member(id="USLACKBOT", name="slackbot", real_name="Slackbot"),
        ],
    )
