from __future__ import annotations

import re
from pathlib import Path

import pytest
from litestar.routes import HTTPRoute

import flowactions_hookspecs
from flowactions_hookspecs import FlowActions, FlowActionsError, Host, OutboundWebhook, spec
from flowactions_hookspecs import errors as of_contract
from flowactions_plugin import errors as of_plugin
from flowactions_plugin.http.problems import TITLES
from flowactions_plugin.insights.filters import ERRORS
from flowactions_plugin.settings.model import READERS
from tests.support import SmallHost, app_with_routes

DOCS = Path(__file__).parents[2] / "docs"


def named(page: str) -> set[str]:
    """Give every word that a page sets in code type."""
    return set(re.findall(r"`([^`\n]+)`", (DOCS / page).read_text()))


def test_every_setting_is_documented_and_no_other() -> None:
    """The settings page's table and the code name the same settings."""
    rows = re.findall(r"^\| `([A-Z_]+)` \|", (DOCS / "reference/settings.md").read_text(), re.MULTILINE)
    assert rows == list(READERS)


def test_every_problem_is_documented_with_its_status() -> None:
    """The HTTP page's table and the code name the same problems."""
    text = (DOCS / "reference/http.md").read_text()
    rows = re.findall(r"^\| `([a-z_]+)` \| (\d{3}) \|", text, re.MULTILINE)
    assert {code: int(status) for code, status in rows} == {
        code: status for code, (status, _) in TITLES.items()
    }


def test_every_kind_of_failure_is_documented() -> None:
    """Those by which deliveries can be searched; statuses by their first digit."""
    text = (
        (DOCS / "reference/errors.md")
        .read_text()
        .partition("## Why an attempt failed")[2]
        .partition("\n## ")[0]
    )
    assert re.findall(r"^\| `(\w+)` \| \w", text, re.MULTILINE) == ["http_4xx", *ERRORS]


def test_no_exception_is_missing_in_a_tree() -> None:
    """The trees above the errors of the contract and of the plugin name every class, with a meaning."""
    for module in (of_contract, of_plugin):
        named = re.findall(r"─ (\w+)(?:, a \w+,| {2,})\S", module.__doc__ or "")
        assert {
            name
            for name, kind in vars(module).items()
            if isinstance(kind, type) and issubclass(kind, FlowActionsError) and name != "FlowActionsError"
        } <= {*named}


def test_every_reason_of_an_install_is_documented_and_put_into_words() -> None:
    """The HTTP page and the reference host's page know each reason that an install may fail for."""
    root = Path(__file__).parents[2]
    code = (root / "flowactions_plugin/chat/oauth.py").read_text()
    reasons = {
        word for line in code.splitlines() if "OAuthFailed(" in line for word in re.findall(r'"(\w+)"', line)
    }
    reasons -= {"access_denied"}  # the provider's word for cancelled
    assert len(reasons) >= 8
    assert reasons <= named("reference/http.md")
    page = root / "conformance/flowactions_conformance/reference_host/pages/connections.js"
    assert reasons <= set(re.findall(r"^  (\w+): \"", page.read_text(), re.MULTILINE))


def test_every_route_is_documented_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The HTTP page's table and what the plugin mounts are the same."""
    monkeypatch.chdir(tmp_path)
    app = app_with_routes(FlowActions.load(SmallHost()))
    mounted = {
        (method, re.sub(r"\{(\w+):str\}", r"{\1}", route.path))
        for route in app.routes
        if isinstance(route, HTTPRoute)
        for handler in route.route_handlers
        for method in handler.http_methods
        if method != "OPTIONS"
    }
    text = (DOCS / "reference/http.md").read_text()
    rows = re.findall(r"^\| `(GET|POST|PUT|DELETE) ([^`]+)` \|", text, re.MULTILINE)
    assert set(rows) == mounted


def test_everything_public_is_in_the_contract_page() -> None:
    """Every exported name, every hook and every member of the facade is on the page, or on that for plugins."""
    words = {
        re.split(r"[(.]", word)[0] for page in ("contract", "plugins") for word in named(f"reference/{page}.md")
    }
    assert set(flowactions_hookspecs.__all__) <= words
    assert {name for name in vars(spec) if name.startswith("flowactions_")} <= words
    assert {name for name in dir(FlowActions) if not name.startswith("_")} - {"load"} <= words


def test_every_member_of_host_is_in_the_table_and_no_other() -> None:
    """With what is missing without it; the required ones say so."""
    text = (
        (DOCS / "reference/contract.md")
        .read_text()
        .partition("## What a host provides")[2]
        .partition("\n### ")[0]
    )
    rows = dict(re.findall(r"^\| `(\w+).*\| ([^|]+) \|$", text, re.MULTILINE))
    members = {name for name in vars(Host) if not name.startswith("_")} | set(Host.__annotations__)
    assert set(rows) == members
    required = {name for name, without in rows.items() if without.startswith("required")}
    assert required == {"settings", *Host.__abstractmethods__}


def test_every_field_of_an_own_webhook_is_in_the_table() -> None:
    """What `OutboundWebhook` has, and the statuses of a `Receipt`."""
    text = (DOCS / "reference/contract.md").read_text().partition("### `enqueue`")[2].partition("\n### ")[0]
    table = "".join(line.split("|")[1] for line in text.splitlines() if line.startswith("| "))
    cells = set(re.findall(r"`(\w+)`", table))
    assert set(OutboundWebhook.__struct_fields__) <= cells
    assert {"queued", "duplicate", "skipped"} <= cells


def test_every_hook_is_tested() -> None:
    """No hook goes without a test that implements it."""
    tests = "".join(path.read_text() for path in Path(__file__).parents[1].rglob("test_*.py"))
    for name in vars(spec):
        if name.startswith("flowactions_"):
            assert re.search(rf"\b{name}\b|{name.removeprefix('flowactions_')}=", tests), name


def test_every_decision_is_listed() -> None:
    """The index of decisions leads to each of them."""
    listed = re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", (DOCS / "decisions/README.md").read_text())
    assert listed == sorted(path.name for path in (DOCS / "decisions").glob("0*.md"))
