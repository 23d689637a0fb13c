"""The provider's OAuth 2.0 v2 install: the consent page, its redirect, and the exchange of the code."""

from __future__ import annotations

import base64
import html
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from litestar import MediaType, Response
from litestar.response import Redirect

from flowactions_conformance.chat_provider.faults import refusal
from flowactions_conformance.chat_provider.state import State

CONSENT_PAGE = Path(__file__).parent / "pages" / "consent.html"


CLIENT_ID = "fake-client-id"
CLIENT_SECRET = "fake-client-secret"  # noqa: S105  guards nothing


def consent(state: State, query: Mapping[str, str]) -> Response[Any]:
    """Ask a user to install the app in a workspace."""
    problem = _problem(query)
    if problem is not None:
        return problem
    page = string.Template(CONSENT_PAGE.read_text(encoding="utf-8"))
    options = "".join(
        f'<option value="{html.escape(workspace.id)}">{html.escape(workspace.name)}</option>'
        for workspace in state.workspaces
    )
    scopes = "".join(f"<li><code>{html.escape(scope)}</code></li>" for scope in _scopes(query))
    hidden = "".join(
        f'<input type="hidden" name="{name}" value="{html.escape(query.get(name, ""))}">'
        for name in ("client_id", "redirect_uri", "state", "scope")
    )
    return Response(page.substitute(options=options, scopes=scopes, hidden=hidden), media_type=MediaType.HTML)


def decide(state: State, form: Mapping[str, str]) -> Response[Any]:
    """Redirect the user back with a code, or with the reason for its absence."""
    problem = _problem(form)
    if problem is not None:
        return problem
    redirect_uri = form["redirect_uri"]
    workspace = next((w for w in state.workspaces if w.id == form.get("workspace")), None)
    answer = {"state": form.get("state", "")}
    if form.get("decision") == "allow" and workspace is not None:
        answer["code"] = state.add_code(workspace, redirect_uri, _scopes(form))
    else:
        answer["error"] = "access_denied"
    separator = "&" if "?" in redirect_uri else "?"
    return Redirect(f"{redirect_uri}{separator}{urlencode(answer)}", status_code=303)


def exchange(state: State, authorization: str, form: Mapping[str, str]) -> dict[str, Any]:
    """Answer ``oauth.v2.access``: a bot token for a code, once.

    Args:
        state: the provider's state.
        authorization: the header's value; the client's id and secret may be there or in the form.
        form: the request's fields.
    """
    given = _basic(authorization) or (form.get("client_id"), form.get("client_secret"))
    if given[0] != CLIENT_ID:
        return refusal("invalid_client_id")
    if given[1] != CLIENT_SECRET:
        return refusal("bad_client_secret")
    code = state.pop_code(form.get("code", ""))
    if code is None:
        return refusal("invalid_code")
    if form.get("redirect_uri") != code.redirect_uri:
        return refusal("bad_redirect_uri")
    token = state.install(code.workspace, code.scopes)
    return {
        "ok": True,
        "access_token": token.value,
        "token_type": "bot",
        "scope": ",".join(token.scopes),
        "bot_user_id": code.workspace.bot_user_id,
        "app_id": "A0FAKE",
        "team": {"name": code.workspace.name, "id": code.workspace.id},
        "enterprise": None,
        "authed_user": {"id": "U0INSTALLER"},
    }


def _problem(query: Mapping[str, str]) -> Response[str] | None:
    """Refuse requests that cannot be answered with a redirect."""
    if query.get("client_id") != CLIENT_ID:
        return Response("Unknown client_id.", status_code=400, media_type=MediaType.TEXT)
    if not query.get("redirect_uri", "").startswith(("http://", "https://")):
        return Response("A redirect_uri is needed.", status_code=400, media_type=MediaType.TEXT)
    return None


def _scopes(query: Mapping[str, str]) -> list[str]:
    return [scope for scope in query.get("scope", "").split(",") if scope]


def _basic(authorization: str) -> tuple[str, str] | None:
    scheme, _, encoded = authorization.partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except ValueError:
        return None
    return name, password
