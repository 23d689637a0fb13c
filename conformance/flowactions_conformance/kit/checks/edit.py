"""EDIT: the editor offers the node types as the plugins describe them, and a saved config reaches the node as it is."""

from __future__ import annotations

from typing import Final

from flowactions_conformance.kit.probing.plugin import NODE, ROUTES, UNAVAILABLE
from flowactions_conformance.kit.registry import check
from flowactions_conformance.kit.support import evidence
from flowactions_conformance.kit.support.client import pacings, walked
from flowactions_conformance.kit.trial import Trial

OWN: Final = ("webhook", "chat_message")
DESCRIBED: Final = (
    "the palette is rebuilt of some fields: hand on what describe() gives",
    "the answer goes through a model of the host's own, which drops or converts what it does not know",
)
KEPT: Final = (
    "the config goes through a model or serializer of the host's, which drops falsy values or unknown keys",
    "keys are converted between camelCase and snake_case",
    "the config is cleaned before it is saved: {k: v for k, v in config.items() if v}",
    "the config is stored in a format, or in a column, that does not hold everything: YAML without quotes, a text cut at its width",
    "texts are trimmed, escaped or expanded: what looks like a variable is the plugin's to read",
)


def _mount(trial: Trial) -> str:
    """Return the path below which another app has the host's: `FlowActions` does not know it, but its editor must."""
    known = evidence.given(trial, NODE)["pickers"]["text"]
    return f"{trial.host.prefix}{ROUTES}/choices".removesuffix(known)


@check(
    "EDIT-1",
    profile="core",
    clause="contract: What a host does (Plugins), Structs, Pickers; spec 2.1, 2.4",
    causes=DESCRIBED,
)
async def shows_node_types_as_they_are(trial: Trial) -> None:
    """The palette has all that each node type says of itself, as the plugin gave it: falsy values, and that one is unavailable."""
    for name in (*OWN, NODE, UNAVAILABLE):
        expected, actual = evidence.given(trial, name), await evidence.shown(trial, name)
        mounted = {field: f"{_mount(trial)}{path}" for field, path in expected["pickers"].items()}
        if actual.get("pickers") == mounted:
            expected = {**expected, "pickers": mounted}
        # A host may add what its editor needs.
        known = {field: actual[field] for field in actual if field in expected}
        trial.same(known, expected, f"the palette's entry of {name!r} is not what the plugin gave")


@check(
    "EDIT-5",
    profile="core",
    clause="contract: What a host does (Configs)",
    causes=KEPT,
    covers=("configs",),
)
async def keeps_the_config(trial: Trial) -> None:
    """A node's config reaches the node as it was saved: falsy values, unknown keys, unicode and numbers."""
    for _ in pacings(trial):
        config = {**trial.values.config(), "probeSecret": trial.id("secret")}
        # Where a host has loops and branches, one stands at the top of the flow, one in a loop, and one in a branch.
        nodes = [trial.probe(name, **config) for name in ("kept", "also-kept", "kept-too")]
        flow = trial.flow(trial.step("a"), *nodes)
        await trial.seed(flow)
        await walked(trial, flow)
        version = evidence.given(trial, NODE)["version"]
        for node in nodes:
            name = node.config["name"]
            reached = trial.reached(name)
            trial.expect(reached, f"the node {name} was not reached")
            got = reached[0].data["node"]
            trial.same(got["config"], node.config, f"the config of a node changed{trial.stands(name)}")
            trial.equal(got["type"], NODE, "the node has another type than was saved")
            other = "the node has another version than the node type had when it was saved"
            trial.equal(got["version"], version, other)
