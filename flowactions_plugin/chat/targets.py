"""Whether a message can reach its channel or member: asked of the provider without sending anything."""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from flowactions_plugin.chat.answers import BUILT_IN_USER, ChannelState, MemberState
from flowactions_plugin.chat.directory import Directory, lists_private_channels
from flowactions_plugin.chat.failures import REVOKED, ChatRefused, advice
from flowactions_plugin.chat.scopes import read_scopes
from flowactions_plugin.chat.store import StoredConnection

POSTS_EVERYWHERE: Final = "chat:write.public"
"""The scope with which an app posts to public channels that it has not joined. It is not asked for (§2.3)."""

NO_TARGET: Final = frozenset(
    {"channel_not_found", "is_archived", "user_not_found", "user_not_visible", "user_disabled"}
)
"""What the provider says of a target that no message reaches."""

NOT_CHECKED: Final = "not_checked"


class TargetFault(NamedTuple):
    """Why a message would not arrive.

    Attributes:
        code: the provider's, or ``not_checked``.
        message: what the author should do.
        certain: whether a message would fail, as far as the provider says.
        of_target: whether the target is wrong, rather than the connection.
    """

    code: str
    message: str
    certain: bool = True
    of_target: bool = True


async def target_fault(
    directory: Directory, stored: StoredConnection, target: str, *, to_member: bool, until: float
) -> TargetFault | None:
    """Asks the provider about a target. Nothing is sent or written, whatever the answer; it raises nothing.

    Args:
        directory: makes the call.
        stored: the organization's connection.
        target: the id of a channel, or of a member.
        to_member: which of the two.
        until: a moment of the event loop's clock by which there is a result.

    Returns:
        What is wrong; ``None``: nothing.
    """
    try:
        async with asyncio.timeout_at(until):
            if to_member:
                return member_fault(target, await directory.member(stored, target))
            return channel_fault(stored, await directory.channel(stored, target))
    except ChatRefused as refusal:
        return refused_fault(stored, refusal)
    except TimeoutError:
        return _not_checked(ChatRefused("unreachable"))


def channel_fault(stored: StoredConnection, channel: ChannelState) -> TargetFault | None:
    """Says why a message to a channel would not arrive."""
    if channel.is_archived:
        return _certain("is_archived")
    if channel.is_member is None:
        return TargetFault(
            NOT_CHECKED, "The chat provider does not say whether the app is in it.", certain=False
        )
    if channel.is_member or (not channel.is_private and POSTS_EVERYWHERE in read_scopes(stored.scopes)):
        return None
    return _certain("not_in_channel")


def member_fault(user: str, member: MemberState) -> TargetFault | None:
    """Says why a direct message to a member would not arrive."""
    if member.is_deleted:
        return _certain("user_disabled")
    if member.is_bot:
        return _certain("cannot_dm_bot")
    # The provider does not say that it is one.
    return (
        TargetFault("cannot_dm_bot", advice("cannot_dm_bot"), certain=False) if user == BUILT_IN_USER else None
    )


def refused_fault(stored: StoredConnection, refusal: ChatRefused) -> TargetFault:
    """Says what a refused question means for a message."""
    if refusal.code in REVOKED:
        return TargetFault(refusal.code, str(refusal), of_target=False)
    if refusal.code not in NO_TARGET:
        # Sending may need less than asking, and a provider that fails now need not fail then.
        return _not_checked(refusal)
    unseen = refusal.code == "channel_not_found" and not lists_private_channels(stored)
    return TargetFault(refusal.code, str(refusal), certain=not unseen)


def _certain(code: str) -> TargetFault:
    return TargetFault(code, advice(code))


def _not_checked(refusal: ChatRefused) -> TargetFault:
    return TargetFault(NOT_CHECKED, f"The target could not be checked. {refusal}", certain=False)
