"""Errors of the chat provider: which are transient, and what to do about the others."""

from __future__ import annotations

from typing import Final

from flowactions_hookspecs import FlowActionsError

RECONNECT: Final = "Reconnect the chat workspace."
ASK_OPERATOR: Final = "Ask the people who operate this service."
ASK_ADMIN: Final = "Ask an administrator of the chat workspace to allow it."
THROTTLED: Final = "The chat provider is throttling: try again in a minute."
PROVIDER_DOWN: Final = "The chat provider has a problem of its own: try again later."

THROTTLING: Final = frozenset({"ratelimited", "rate_limited"})
TRANSIENT: Final = THROTTLING | frozenset(
    {
        "service_unavailable",
        "request_timeout",
        "internal_error",
        "fatal_error",
        "unreachable",
    }
)
"""Codes after which the same call may succeed later."""

REVOKED: Final = frozenset({"invalid_auth", "account_inactive", "token_revoked", "token_expired"})
"""Codes of a token that no longer works; not ``not_authed``: a token is sent with each call."""

OF_ONE: Final = frozenset(
    {
        "not_in_channel",
        "channel_not_found",
        "is_archived",
        "restricted_action",
        "cannot_dm_bot",
        "user_not_found",
        "user_not_visible",
        "user_disabled",
        "no_text",
        "msg_too_long",
    }
)
"""Codes of a refusal that concerns one channel, member or message: others of the workspace may still be posted."""

UNREADABLE_ANSWER: Final = "unreadable_answer"
"""The code of a 2xx that is not in the provider's form. No call is repeated after it, for it may have succeeded."""

MAYBE_POSTED: Final = "maybe_posted"
"""The same of a message."""

UNEXPECTED: Final = "send_failed"
"""The code of an error that is none of the provider's."""

ADVICE: Final = {
    "not_in_channel": "Invite the app to the channel first.",
    "channel_not_found": "The channel does not exist, or it is private and the app is not in it: "
    "choose another channel or invite the app.",
    "is_archived": "The channel is archived: choose another one.",
    "restricted_action": "Posting in this channel is restricted: choose another one.",
    "cannot_dm_bot": "Direct messages to bots are not possible: choose a person.",
    "user_not_found": "The member does not exist: choose another one.",
    "user_not_visible": "The app cannot see this member: choose another one.",
    "user_disabled": "The member's account is deactivated: choose another one.",
    "messages_tab_disabled": "The app's messages tab is off: turn it on in the chat provider's app settings.",
    "no_text": "The message is empty: write a text.",
    "msg_too_long": "The message is too long: shorten it.",
    "invalid_auth": f"The chat workspace no longer accepts the token. {RECONNECT}",
    "not_authed": f"The chat provider got no token, which was lost on the way. {ASK_OPERATOR}",
    "account_inactive": f"The app was removed from the chat workspace. {RECONNECT}",
    "token_revoked": f"The token was revoked. {RECONNECT}",
    "token_expired": f"The token has expired. {RECONNECT}",
    "app_uninstalled": f"The app was removed from the chat workspace. {RECONNECT}",
    "missing_scope": f"The installed app lacks a permission that it needs now. {RECONNECT}",
    "no_permission": f"The token may not do this. {RECONNECT}",
    "not_allowed_token_type": f"This kind of token cannot post messages. {RECONNECT}",
    "access_denied": ASK_ADMIN,
    "enterprise_is_restricted": ASK_ADMIN,
    "ekm_access_denied": ASK_ADMIN,
    "team_access_not_granted": ASK_ADMIN,
    "message_limit_exceeded": "The workspace has used up its messages: ask an administrator of it.",
    "ratelimited": THROTTLED,
    "rate_limited": THROTTLED,
    "service_unavailable": PROVIDER_DOWN,
    "request_timeout": PROVIDER_DOWN,
    "internal_error": PROVIDER_DOWN,
    "fatal_error": PROVIDER_DOWN,
    "unreachable": "The chat provider did not answer: try again later.",
    UNREADABLE_ANSWER: f"The chat provider answered, but not as Slack does. {ASK_OPERATOR}",
    MAYBE_POSTED: "The message may have been posted: look for it before you send it again. "
    "The chat provider answered, but not as Slack does.",
    "token_unreadable": f"The stored token cannot be opened any more. {RECONNECT}",
    "token_rotation": f"The app gets tokens that expire, which are not supported. {ASK_OPERATOR}",
    "enterprise_install": "The app was installed for a whole organization at the provider: "
    "connect again and choose one workspace.",
    "connected_meanwhile": "Another workspace was connected at the same time: look at the connection, "
    "and connect again if you want to replace it.",
    UNEXPECTED: "Sending failed in a way that was not expected: the log has more.",
    "invalid_cursor": "The list has changed in the meantime: start again from its beginning.",
    "invalid_code": "The link has expired or was used already: connect again.",
    "bad_redirect_uri": f"The chat app does not know this service's callback address. {ASK_OPERATOR}",
    "bad_client_secret": f"The chat app's secret is set wrongly. {ASK_OPERATOR}",
    "invalid_client_id": f"The chat app's id is set wrongly. {ASK_OPERATOR}",
}
"""Code → what the author of a flow does. The provider's codes, and eight of the plugin: ``unreachable``, ``unreadable_answer``,
``maybe_posted``, ``token_unreadable``, ``token_rotation``, ``enterprise_install``, ``connected_meanwhile``, ``send_failed``."""

NOT_SLACK: Final = (
    "Look at CHAT_API_URL, and at proxies on the way: an answer did not come from a Slack-compatible API."
)

FOR_OPERATORS: Final = {
    UNREADABLE_ANSWER: NOT_SLACK,
    MAYBE_POSTED: NOT_SLACK,
    "not_authed": "A proxy removes the header Authorization: look at that of FLOWACTIONS_EGRESS_PROXY, and at others.",
    "token_rotation": "Turn off token rotation in the settings of the app of CHAT_CLIENT_ID. If the provider refuses, make "
    "another app without it.",
    "token_unreadable": "The present encryption keys do not open the stored token: put the old key back into "
    "FLOWACTIONS_ENCRYPTION_KEYS, or let the workspace be connected again.",
    "bad_redirect_uri": "Add BACKEND_PUBLIC_URL with /integrations/chat/callback to the chat app's redirect URLs.",
    "bad_client_secret": "CHAT_CLIENT_SECRET is not the chat app's secret: correct the setting.",
    "invalid_client_id": "CHAT_CLIENT_ID is not the chat app's id: correct the setting.",
}
"""Code → what an operator does, where that is something else; for the log and ``flowactions doctor``."""

PERMANENT: Final = frozenset(ADVICE) - TRANSIENT
"""Codes that last until a person acts. Codes in neither set are treated as transient."""


class ChatRefused(FlowActionsError):
    """The chat provider refused a call, or did not answer.

    Attributes:
        code: the provider's code; ``unreachable`` without one.
        retry_after: the delay that the provider asked for, in seconds; ``None`` when it asked for none.
        needed: with ``missing_scope``, the scopes that the call needs and the token lacks.
        detail: a short explanation for the log; empty when the code is enough.
        transient: whether the same call may succeed later.
        throttled: whether the provider asks for fewer calls.
        of_one: whether it concerns one channel, member or message, and not the workspace.
    """

    def __init__(
        self, code: str, retry_after: float | None = None, *, needed: tuple[str, ...] = (), detail: str = ""
    ) -> None:
        super().__init__(advice(code))
        self.code = code
        self.retry_after = retry_after
        self.needed = needed
        self.detail = detail
        self.transient = _known(code) not in PERMANENT
        self.throttled = code in THROTTLING
        self.of_one = _known(code) in OF_ONE


class AnswerTooLarge(ChatRefused):
    """An answer is larger than the limit."""

    def __init__(self) -> None:
        super().__init__(UNREADABLE_ANSWER, detail="the answer is too large")


def code_with_detail(refusal: ChatRefused) -> str:
    """Return an error's code and detail, for the log."""
    return f"{refusal.code} ({refusal.detail})" if refusal.detail else refusal.code


def advice(code: str) -> str:
    """Return what the author of a flow does about a provider's code."""
    return ADVICE.get(_known(code)) or f"The chat provider refused with {code!r}."


def advice_for_operators(code: str) -> str:
    """Return what an operator does about a provider's code; it may name a setting."""
    return FOR_OPERATORS.get(code) or advice(code)


def _known(code: str) -> str:
    return "restricted_action" if code.startswith("restricted_action") else code
