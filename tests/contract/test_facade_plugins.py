from __future__ import annotations

from typing import Any

import pytest

from flowactions_hookspecs import FlowActions, PluginInvalid, SettingsInvalid, hookimpl
from tests.owning import CrmPlugin, own_webhook, plugin_origin
from tests.support import SmallHost, development


class AnotherRuntime:
    __name__ = "another"

    @hookimpl
    def flowactions_runtime(self, actions: FlowActions) -> Any:
        return actions.plugin_state(lambda host, own: _Runtime())


class _Runtime:
    async def reach(self, *_: Any) -> Any: ...
    async def advance(self, *_: Any) -> Any: ...
    async def prepare(self, *_: Any) -> Any: ...
    async def enqueue(self, *_: Any) -> Any: ...
    async def test(self, *_: Any) -> Any: ...
    async def has_agent(self, *_: Any) -> Any: ...


@pytest.fixture
def host(tmp_path: Any) -> SmallHost:
    return SmallHost(development(f"sqlite:///{tmp_path / 'f.db'}"))


def test_two_runtimes_are_named(host: SmallHost) -> None:
    """One plugin provides the runtime; a second one is an error with both names."""
    with pytest.raises(PluginInvalid, match=r"'flowactions(-plugin)?' and 'another' both provide the runtime"):
        FlowActions.load(host, plugins=[AnotherRuntime()])


async def test_a_plugins_facade_works_once_the_lifespan_is_open(host: SmallHost) -> None:
    """It has the host's node types, and calls as the plugin."""
    crm = CrmPlugin()
    actions = FlowActions.load(host, plugins=[crm])
    assert crm.actions is not None
    assert crm.actions.node_types == actions.node_types
    async with actions.lifespan(tasks=False):
        webhook = own_webhook(origin=plugin_origin(), idempotency_key="k")
        assert (await crm.actions.enqueue(webhook)).status == "queued"
        assert (await crm.actions.enqueue(webhook)).status == "duplicate"
        with pytest.raises(ValueError, match="the caller is 'host'"):
            await actions.enqueue(webhook)


def test_the_settings_errors_of_all_plugins_come_as_one(host: SmallHost) -> None:
    """Whoever starts the host mends them in one go."""

    class Choosy:
        __name__ = "choosy"

        @hookimpl
        def flowactions_node_types(self) -> Any:
            raise SettingsInvalid("CRM_TOKEN is missing")

    host.settings = {"FLOWACTIONS_DELIVERY": "never"}
    with pytest.raises(SettingsInvalid, match=r"(?s)FLOWACTIONS_DELIVERY.*CRM_TOKEN is missing"):
        FlowActions.load(host, plugins=[Choosy()])


@pytest.mark.parametrize(
    "wrong",
    [["sync"], {"sync": "secret"}, {1: lambda origin: None}],
    ids=["no mapping", "no function", "no name"],
)
def test_signing_secrets_are_names_and_functions(host: SmallHost, wrong: Any) -> None:
    """What flowactions_signing_secrets returns is checked at load, and the plugin is named."""
    crm = CrmPlugin()
    crm.resolvers = wrong
    with pytest.raises(
        PluginInvalid, match="flowactions_signing_secrets of plugin 'crm' must return a mapping"
    ):
        FlowActions.load(host, plugins=[crm])
