from __future__ import annotations

from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from flowactions_hookspecs import FlowActions, NotStarted, PluginInvalid, hookimpl
from tests.owning import CrmPlugin, own_webhook, plugin_origin
from tests.support import SmallHost, development


@pytest.fixture
def host(tmp_path: Any) -> SmallHost:
    return SmallHost(development(f"sqlite:///{tmp_path / 'f.db'}"))


async def test_a_plugins_facade_works_once_the_lifespan_is_open(host: SmallHost) -> None:
    """It has the host's node types, and calls as the plugin."""
    crm = CrmPlugin()
    actions = FlowActions.load(host, plugins=[crm])
    assert crm.actions is not None
    assert crm.actions.node_types == actions.node_types
    webhook = own_webhook(origin=plugin_origin(), idempotency_key="k")
    with pytest.raises(NotStarted):
        await crm.actions.enqueue(webhook)
    async with actions.lifespan(tasks=False):
        assert (await crm.actions.enqueue(webhook)).status == "queued"
        assert (await crm.actions.enqueue(webhook)).status == "duplicate"
        with pytest.raises(ValueError, match="the caller is 'host'"):
            await actions.enqueue(webhook)


class TestNames:
    """A plugin's name is the one that its origins carry (§5.3.6)."""

    def test_a_given_plugin_with_origins_says_their_name(self, host: SmallHost) -> None:
        """The name of its class, or of the module that was imported, is none that was chosen for that."""

        class Nameless:
            @hookimpl
            def flowactions_signing_secrets(self) -> Any:
                return {}

        imported = ModuleType("shop.crm")
        imported.__spec__ = ModuleSpec("shop.crm", None)
        vars(imported)["flowactions_signing_secrets"] = Nameless.flowactions_signing_secrets
        for unnamed, name in ((Nameless(), "Nameless"), (imported, "shop.crm")):
            with pytest.raises(PluginInvalid, match=f"plugin '{name}' is given .* set flowactions_name in it"):
                FlowActions.load(host, plugins=[unnamed])

    async def test_what_it_says_is_its_name(self, host: SmallHost) -> None:
        """Its origins carry it, and so do its keys; without origins, any name will do."""
        crm = CrmPlugin()
        crm.flowactions_name = "billing"  # type: ignore[attr-defined]
        actions = FlowActions.load(host, plugins=[crm, SimpleNamespace()])
        assert actions.plugin_names[-2:] == ("billing", "SimpleNamespace")
        async with actions.lifespan(tasks=False):
            assert crm.actions is not None
            of_billing = own_webhook(origin=plugin_origin(plugin="billing"))
            assert (await crm.actions.enqueue(of_billing)).status == "queued"
            with pytest.raises(ValueError, match="of plugin 'crm', and the caller is 'plugin:billing'"):
                await crm.actions.enqueue(own_webhook(origin=plugin_origin()))

    @pytest.mark.parametrize("name", [5, "", None])
    def test_a_name_is_text(self, host: SmallHost, name: Any) -> None:
        """Anything else is an error at load."""
        with pytest.raises(PluginInvalid, match=r"flowactions_name of plugin .* must be text"):
            FlowActions.load(host, plugins=[SimpleNamespace(flowactions_name=name)])

    def test_an_installed_plugin_has_the_name_of_its_entry_point(
        self, host: SmallHost, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One that says another would have its webhooks refused, so it does not load."""
        installed(tmp_path, "flowactions_name = 'billing'\n", "shop_crm")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(PluginInvalid, match="plugin 'crm' says flowactions_name = 'billing'"):
            FlowActions.load(host)

    def test_an_entry_point_that_names_none_is_no_plugin(
        self, host: SmallHost, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """So a distribution has a plugin for some environments only; in the others no list names it."""
        installed(tmp_path, "plugin = None\n", "shop_crm_for_tests:plugin")
        monkeypatch.syspath_prepend(tmp_path)
        assert "crm" not in FlowActions.load(host).plugin_names


def installed(folder: Path, module: str, entry_point: str) -> None:
    """Install a distribution with a plugin of the name crm in a folder."""
    (folder / f"{entry_point.partition(':')[0]}.py").write_text(module)
    information = folder / "shop_crm-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: shop-crm\nVersion: 1\n")
    (information / "entry_points.txt").write_text(f"[flowactions]\ncrm = {entry_point}\n")
