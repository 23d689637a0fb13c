"""A fake chat provider on loopback with the request and answer formats of Slack's Web API."""

from flowactions_conformance.chat_provider.app import FakeChatProvider
from flowactions_conformance.chat_provider.faults import Fault, Gate
from flowactions_conformance.chat_provider.state import (
    Channel,
    Member,
    Message,
    Token,
    Workspace,
    sample_workspace,
)

__all__ = [
    "Channel",
    "FakeChatProvider",
    "Fault",
    "Gate",
    "Member",
    "Message",
    "Token",
    "Workspace",
    "sample_workspace",
]
