"""The OpenAPI document of the plugins' routes, and the security schemes that they name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

from litestar import Litestar
from litestar.openapi import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme
from litestar.serialization import encode_json
from litestar.types import ControllerRouterHandler

OPENAPI_COMPONENTS: Final = Components(
    security_schemes={
        "dashboard": SecurityScheme(
            type="http",
            scheme="bearer",
            description="A person's session in the host's dashboard: `Host.dashboard_principal` decides.",
        ),
        "api": SecurityScheme(
            type="http",
            scheme="bearer",
            description="A customer backend's access token: `Host.api_principal` decides.",
        ),
        "chatSignature": SecurityScheme(
            type="apiKey",
            security_scheme_in="header",
            name="X-Slack-Signature",
            description="The chat provider's signature, scheme v0, with `X-Slack-Request-Timestamp`.",
        ),
        "authSignature": SecurityScheme(
            type="apiKey",
            security_scheme_in="header",
            name="svix-signature",
            description="The auth provider's signature, with `svix-id` and `svix-timestamp`.",
        ),
    }
)
"""Give it to ``OpenAPIConfig(components=…)``; the routes refer to these security schemes by name."""


def openapi_document(route_handlers: Sequence[ControllerRouterHandler]) -> dict[str, Any]:
    """Describe routes in OpenAPI, with the security schemes that they name.

    Args:
        route_handlers: the plugins' routes, with the prefix.

    Returns:
        The document, of JSON values; the caller may change it.
    """
    config = OpenAPIConfig(title="Flow actions", version="1", components=OPENAPI_COMPONENTS)
    app = Litestar(route_handlers=list(route_handlers), openapi_config=config, logging_config=None)
    document: dict[str, Any] = json.loads(encode_json(app.openapi_schema.to_schema()))
    return document
