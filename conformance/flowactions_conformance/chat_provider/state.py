"""The fake provider's state: workspaces with channels and members, tokens, and posted messages."""

from __future__ import annotations

import math
import secrets
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

import msgspec

BURST = 5
"""How many messages a channel takes at once."""

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

    @property
    def direct_channel_id(self) -> str:
        """The id of the direct-message channel with the app."""
        return f"D{self.id[1:]}"


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A posted message; ``ts`` is its time in Unix seconds, and unique."""

    workspace: str
    channel_id: str
    channel: str
    text: str
    ts: str


class Workspace(msgspec.Struct, kw_only=True):
    """A workspace.

    Args:
        page_size: the maximum size of a page, whatever the caller requests.
        empty_pages: the number of empty pages, each with a cursor, before the first channel.
        limited: whether calls are limited as `methods.METHODS` says, and messages to one a second and channel.
    """

    id: str
    name: str
    bot_user_id: str
    channels: list[Channel]
    members: list[Member]
    page_size: int = 999
    empty_pages: int = 0
    limited: bool = False


class Token(msgspec.Struct, kw_only=True):
    """A bot token. ``dead`` is the error code of a token that no longer works."""

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
    """The state of one fake provider.

    Args:
        workspaces: at least one.
        clock: Unix seconds.
    """

    def __init__(self, workspaces: Sequence[Workspace], clock: Callable[[], float]) -> None:
        self.workspaces = list(workspaces)
        self.messages: list[Message] = []
        self._tokens: dict[str, Token] = {}
        self._codes: dict[str, Code] = {}
        self._open: set[tuple[str, str]] = set()
        self._called: defaultdict[tuple[str, str], deque[float]] = defaultdict(deque)
        self._next_post: dict[tuple[str, str], float] = {}
        self.clock = clock
        self._last_micros = 0

    def add_token(
        self, workspace: Workspace, value: str | None = None, scopes: Sequence[str] = ALL_SCOPES
    ) -> Token:
        """Issue a bot token for a workspace."""
        token = Token(value=value or f"xoxb-{secrets.token_hex(12)}", workspace=workspace, scopes=tuple(scopes))
        self._tokens[token.value] = token
        return token

    def install(self, workspace: Workspace, scopes: Sequence[str]) -> Token:
        """Install the app in a workspace. A second install adds its scopes to the existing token."""
        for token in self.tokens_of(workspace):
            if token.dead is None:
                token.scopes += tuple(scope for scope in scopes if scope not in token.scopes)
                return token
        return self.add_token(workspace, scopes=scopes)

    def token(self, value: str) -> Token | None:
        """Return a token; one that was not issued but selects a fault belongs to the first workspace."""
        found = self._tokens.get(value)
        if found is None and value.startswith("xoxb-fault-"):
            return Token(value=value, workspace=self.workspaces[0])
        return found

    def tokens_of(self, workspace: Workspace) -> list[Token]:
        """Return the tokens that were issued for a workspace."""
        return [token for token in self._tokens.values() if token.workspace is workspace]

    def is_installed(self, workspace: Workspace) -> bool:
        """Return whether the app has a token that works in a workspace."""
        return any(token.dead is None for token in self.tokens_of(workspace))

    def now(self) -> int:
        """Return Unix seconds."""
        return int(self.clock())

    def seconds_to_wait(self, workspace: Workspace, what: str, calls: int, seconds: int) -> int:
        """Count a call, unless it exceeds a limit.

        Args:
            workspace: the workspace that is called.
            what: the method.
            calls: how many calls are allowed in that time.
            seconds: the time.

        Returns:
            The seconds until the next call is allowed; 0 when this one is.
        """
        now, called = self.clock(), self._called[workspace.id, what]
        while called and called[0] <= now - seconds:
            called.popleft()
        if len(called) >= calls:
            return math.ceil(called[0] + seconds - now)
        called.append(now)
        return 0

    def seconds_to_post(self, workspace: Workspace, channel_id: str) -> int:
        """Count a message to a channel, unless it exceeds one a second with bursts of `BURST`.

        Returns:
            The seconds until the next one is allowed; 0 when this one is.
        """
        now, key = self.clock(), (workspace.id, channel_id)
        at = max(now, self._next_post.get(key, now))
        if at > now + BURST - 1:
            return math.ceil(at - now - BURST + 1)
        self._next_post[key] = at + 1
        return 0

    def add_code(self, workspace: Workspace, redirect_uri: str, scopes: Sequence[str]) -> str:
        """Issue an OAuth code."""
        value = secrets.token_urlsafe(16)
        self._codes[value] = Code(workspace, redirect_uri, tuple(scopes))
        return value

    def pop_code(self, value: str) -> Code | None:
        """Remove an OAuth code and return it."""
        return self._codes.pop(value, None)

    def open_direct(self, workspace: Workspace, member: Member) -> bool:
        """Open the direct-message channel with a member; returns whether it was open before."""
        key = (workspace.id, member.direct_channel_id)
        was_open = key in self._open
        self._open.add(key)
        return was_open

    def direct_member(self, workspace: Workspace, channel_id: str) -> Member | None:
        """Return the member of an open direct-message channel."""
        if (workspace.id, channel_id) not in self._open:
            return None
        return next((member for member in workspace.members if member.direct_channel_id == channel_id), None)

    def post(self, workspace: Workspace, channel_id: str, channel: str, text: str) -> Message:
        """Store a message."""
        # Timestamps must be unique, also of two messages in one microsecond and after the clock was set back.
        self._last_micros = max(int(self.clock() * 1_000_000), self._last_micros + 1)
        seconds, micros = divmod(self._last_micros, 1_000_000)
        message = Message(
            workspace=workspace.name,
            channel_id=channel_id,
            channel=channel,
            text=text,
            ts=f"{seconds}.{micros:06d}",
        )
        self.messages.append(message)
        return message


def sample_workspace(name: str = "Acme", team_id: str = "T0000ACME", *, limited: bool = False) -> Workspace:
    """Return a small workspace with every kind of channel and member; ``limited``: its calls are."""
    return Workspace(
        limited=limited,
        id=team_id,
        name=name,
        bot_user_id=f"UBOT{team_id[2:]}",
        channels=[
            Channel(id="C0GENERAL", name="general"),
            Channel(id="C00ORDERS", name="orders"),
            Channel(id="C00RANDOM", name="random", is_member=False),
            Channel(id="G000LEADS", name="leads", is_private=True),
            Channel(id="C00000OLD", name="old-project", is_archived=True),
        ],
        members=[
            Member(id="U000GRACE", name="grace", real_name="Grace Example"),
            Member(id="U000LINUS", name="linus", real_name="Linus Example"),
            Member(id="U0000GONE", name="gone", real_name="Gone Example", deleted=True),
            Member(id="U000ROBOT", name="robot", real_name="Robot", is_bot=True),
            Member(id="USLACKBOT", name="slackbot", real_name="Slackbot"),
        ],
    )
