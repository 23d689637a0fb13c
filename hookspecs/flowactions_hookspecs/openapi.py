"""What a host's OpenAPI document says of the credentials that plugins' routes ask for."""

from __future__ import annotations

from typing import Final

from litestar.openapi.spec import Components, SecurityScheme

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
