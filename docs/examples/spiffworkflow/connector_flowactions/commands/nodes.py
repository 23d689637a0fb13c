"""One class for each node type: its name is the command's, and the parameters of its ``__init__`` are the form in the editor.

The proxy runs this module anew for each request, within the Flask app.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from inspect import Parameter, Signature
from typing import Any, Final, Optional

from flask import current_app

from connector_flowactions.sender import ACTIONS, OWN, reach

TYPES: Final = {"string": str, "boolean": bool, "integer": int}
"""As the proxy's catalog names them; all others are ``any``."""

OF_THE_CALL: Final = {
    **dict.fromkeys(OWN, str),
    "spiff__task_id": str,
    "spiff__process_instance_id": int,
    "spiff__process_model_identifier": str,
}
"""Of each command: what fills templates, and what tells one call from another. The backend gives those with ``spiff__``."""


def command(kind: str, schema: Mapping[str, Any]) -> type:
    """Make the class of a node type.

    Args:
        kind: its name.
        schema: of its config.
    """

    def init(self: Any, **given: Any) -> None:
        self.given = given

    def execute(self: Any, config: Mapping[str, Any], task_data: object) -> dict[str, Any]:  # noqa: ARG001  the proxy's
        answer: dict[str, Any] = reach(config, kind, self.given)
        return answer

    parameters = [Parameter("self", Parameter.POSITIONAL_ONLY), *_parameters(schema)]
    init.__signature__ = Signature([*parameters, Parameter("kwargs", Parameter.VAR_KEYWORD)])  # type: ignore[attr-defined]
    return type(kind, (), {"__init__": init, "execute": execute, "__module__": __name__})


def _parameters(schema: Mapping[str, Any]) -> Iterator[Parameter]:
    fields = dict(schema["properties"])
    for dependency in schema.get("dependencies", {}).values():
        for each in dependency.get("oneOf", ()):
            fields = {**each["properties"], **fields}
    for name, field in fields.items():
        kind = TYPES.get(field.get("type"), list)
        if name in schema.get("required", ()):
            yield Parameter(name, Parameter.KEYWORD_ONLY, annotation=kind)
        else:
            yield _optional(name, kind)
    for name, kind in OF_THE_CALL.items():
        yield _optional(name, kind)


def _optional(name: str, kind: type) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Optional[kind])  # noqa: UP045  the proxy reads it


globals().update(
    {name: command(name, node.config_schema) for name, node in current_app.config[ACTIONS].node_types.items()}
)
