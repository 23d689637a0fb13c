from __future__ import annotations

import ast
import asyncio
import inspect
import logging
import re
import shlex
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from queue import Queue
from types import ModuleType
from typing import Any

import httpx
import pytest
from sqlalchemy.ext.asyncio import create_async_engine
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser

from flowactions_conformance.__main__ import main as conformance
from flowactions_conformance.kit.registry import PROFILES, select
from flowactions_hookspecs import Deferred, FlowActions, HostOrigin, Node, OutboundWebhook
from tests.contract.wrap.django_host import django_host
from tests.docs.fences import blocks_of
from tests.receivers.languages import LANGUAGES
from tests.support import SmallHost, a_walk, development
from tests.waiting import SAFETY_SECONDS

ROOT = Path(__file__).parents[2]
GUIDES = (
    "add-to-your-host.md",
    "develop-with-fakes.md",
    "prove-your-host.md",
    "receive-webhooks.md",
    "signature-does-not-verify.md",
)
"""Guides of which every Python block runs, in order."""


class _Await(CodeBlockParser):
    """Runs Python examples that may await at their top level."""

    language = "python"

    def evaluate(self, example: Example) -> None:
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(example.parsed, example.path, "exec", flags=flags, dont_inherit=True)
        pending = eval(code, example.namespace)  # noqa: S307  the project's own documents
        if inspect.iscoroutine(pending):
            example.namespace["_run"](pending)


def lines_of(example: Example) -> int:
    """Count the lines of an example's code that are neither empty nor imports; a call over several lines is several."""
    tree = ast.parse(example.parsed)
    imports = {
        number
        for each in tree.body
        if isinstance(each, ast.Import | ast.ImportFrom)
        for number in range(each.lineno, (each.end_lineno or each.lineno) + 1)
    }
    lines = enumerate(example.parsed.splitlines(), 1)
    return sum(1 for number, line in lines if line.strip() and number not in imports)


def stated_lines(page: str) -> int:
    """Give the number of lines that a page says its whole example has."""
    (number,) = re.findall(r"in\s(\d+)\slines", (ROOT / "docs" / "how-to" / page).read_text())
    return int(number)


def test_a_host_with_webhook_nodes_has_as_many_lines_as_its_page_says() -> None:
    """The figure is that of the example, which is a whole host: with it alone, a webhook node is queued."""
    example = examples(ROOT / "docs" / "how-to" / "add-to-your-host.md", {})[0]
    assert lines_of(example) == stated_lines("add-to-your-host.md")


def test_another_plugin_has_as_many_lines_as_its_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The figure is that of the example, which is a whole plugin: its node is recorded, and queued at its step."""
    whole, paced = examples(ROOT / "docs" / "how-to" / "write-a-node-type.md", {})
    assert lines_of(whole) == stated_lines("write-a-node-type.md")
    whole.evaluate()
    plugin = ModuleType("crm")
    vars(plugin).update(whole.namespace)
    plugin.__name__ = "crm"
    settings = development(
        f"sqlite:///{tmp_path / 'f.db'}", CRM_URL="https://crm.example/", FLOWACTIONS_HOST_WORKER="off"
    )
    actions = FlowActions.load(SmallHost(settings), plugins=[plugin])
    paced.namespace.update(actions=actions, Node=Node, walk=a_walk(pacing=Deferred("s")), step_id="s")
    with a_loop() as runner:
        paced.namespace["_run"] = runner.run
        paced.evaluate()


def a_loop() -> asyncio.Runner:
    """Make an event loop that ends its tasks when it is closed, and with them their connections."""
    return asyncio.Runner(loop_factory=asyncio.new_event_loop)


def examples(path: Path, namespace: dict[str, Any]) -> list[Example]:
    """Find a page's examples; they share one namespace."""
    document = Sybil(parsers=[_Await()], path=str(ROOT)).parse(path)
    document.namespace.update(namespace)
    return list(document.examples())


@pytest.mark.parametrize("page", GUIDES)
def test_the_examples_of_a_guide_work(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every Python block of a guide runs, in order, and its assertions hold."""
    monkeypatch.chdir(tmp_path)
    logging.getLogger("flowactions").setLevel(logging.CRITICAL)
    django_host(None)  # a guide's asgi.py has settings
    if page == "prove-your-host.md":  # which has it written before
        monkeypatch.syspath_prepend(tmp_path)
        assert conformance(["init"]) == 0
    try:
        with a_loop() as runner:
            found = examples(ROOT / "docs" / "how-to" / page, {"_run": runner.run})
            if page == "signature-does-not-verify.md":  # whose function is pasted below another page's
                exec(LANGUAGES[0].function(), found[0].namespace)  # noqa: S102  the project's own documents
            for example in found:
                example.evaluate()
            for name in ("api", "shop", "site", "mounted", "served"):
                if name in found[0].namespace:
                    assert runner.run(_answer_of(found[0].namespace[name])) == 503
    finally:
        logging.getLogger("flowactions").setLevel(logging.NOTSET)
    assert found


async def _answer_of(app: Any) -> int:
    """Ask a framework's app for a route of the plugins'; give the status."""
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://host") as client:
        return (await client.get("/v1/webhooks/outbox")).status_code


def test_what_the_guide_on_proving_shows_is_what_the_kit_has() -> None:
    """The profiles are those of the kit, and the failure is as the kit writes it."""
    text = (ROOT / "docs" / "how-to" / "prove-your-host.md").read_text()
    assert re.findall(r"^\| `(\w+)` \| [^`]", text, re.MULTILINE)[: len(PROFILES) - 1] == list(PROFILES[1:])
    (shown,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    (check,) = select(["LOAD-2"])
    assert shown.startswith(f"FAIL  {check.id}  {check.title}\n  core\n  clause    {check.clause}\n")
    assert all(f". {cause}\n" in shown for cause in check.causes)


def test_the_landing_page_shows_the_readmes_host_and_request() -> None:
    """The host that the test below runs, and the request that it sends."""
    shown, run = (
        {each.language: each.text for each in reversed(blocks_of(ROOT / page))}
        for page in ("docs/index.md", "README.md")
    )
    assert [shown[each] for each in ("python", "http")] == [run[each] for each in ("python", "http")]


def test_the_readmes_lines_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host sends the request that it shows, and goes on with a node that waits for a user."""
    monkeypatch.chdir(tmp_path)
    sent: Queue[str] = Queue()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            head = [self.requestline, *(f"{name.lower()}: {value}" for name, value in self.headers.items())]
            sent.put("\n".join([*head, "", body]))
            self.send_response(200)
            self.end_headers()

    receiver = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=receiver.serve_forever, daemon=True).start()
    config = {
        "webhookUrl": f"http://127.0.0.1:{receiver.server_port}/orders",
        "webhookSecret": "a secret of the host's",
        "webhookBody": '{"user": {{userId}}, "said": {{content}}}',
    }
    node = Node(id="n", type="webhook", config=config)

    async def stored_node(*_: str) -> Node:
        return node

    namespace: dict[str, Any] = {"stored_node": stored_node, "step_id": None, "node": node}
    namespace["walk"] = a_walk(pacing=Deferred(None), user_id="zoe", content="two pizzas")
    mount, call = examples(ROOT / "README.md", namespace)
    mount.evaluate()
    lifespan = mount.namespace["actions"].lifespan()
    with a_loop() as runner:
        call.namespace["_run"] = runner.run
        runner.run(lifespan.__aenter__())
        call.evaluate()
        arrived = runner.run(asyncio.to_thread(sent.get, timeout=SAFETY_SECONDS))
        runner.run(lifespan.__aexit__(None, None, None))
    receiver.shutdown()
    receiver.server_close()
    assert call.namespace["result"].status == "recorded"
    assert [result.status for result in call.namespace["advanced"].results] == ["queued"]
    (shown,) = re.findall(r"^```http\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    head, _, body = shown.strip().partition("\n\n")
    assert arrived.endswith(f"\n\n{body}")
    for line in head.splitlines():
        assert re.search(f"^{re.escape(line).replace('…', '.+')}$", arrived, re.MULTILINE), line


def test_the_example_of_the_contract_works(tmp_path: Path) -> None:
    """A webhook of the host's own is there when the host's transaction commits; the URL is one that answers nothing."""
    (example,) = examples(ROOT / "docs" / "reference" / "contract.md", {})

    async def enqueue_in_a_transaction() -> Any:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path / 'host.db'}")
        actions = FlowActions.load(SmallHost(development("sqlite:///unused.db"), database=engine))
        async with actions.lifespan(tasks=False):
            async with engine.begin() as connection:
                example.namespace.update(
                    actions=actions,
                    connection=connection,
                    HostOrigin=HostOrigin,
                    OutboundWebhook=OutboundWebhook,
                )
                code = compile(example.parsed, example.path, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                await eval(code, example.namespace)  # noqa: S307  the project's own documents
            async with engine.connect() as connection:
                found = await connection.exec_driver_sql("SELECT event_type FROM flowactions_outbox")
                rows = found.all()
        await engine.dispose()
        return rows

    rows = asyncio.run(enqueue_in_a_transaction())
    assert example.namespace["receipt"].status == "queued"
    assert [tuple(row) for row in rows] == [("order.placed",)]


def test_the_readme_is_read_in_three_minutes() -> None:
    """It has 420 words at most, tables and code apart, and its first forty lines hold both commands and say for whom it is."""
    text = (ROOT / "README.md").read_text()
    words = re.sub(r"^\|.*\n|^```(?:python|http)\n.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    assert len(words.split()) <= 420
    beginning = "\n".join(text.splitlines()[:40])
    assert "flowactions-demo" in beginning
    assert "-m pytest" in beginning
    assert "It is for " in beginning


def test_the_readmes_figures_are_those_of_the_page_on_scaling() -> None:
    """Its table is that page's, and its ratios are right; that page has the other two figures."""
    rate = r"\| ([\d,]+)/s \| ([\d.]+) "
    table = rf"^\| ([^|]+) {rate}{rate}\| (\d+, \d+ MiB) \| ([\d.]+, [\d.]+ ms) \| ([\d.]+, [\d.]+ ms) \|$"
    text, scaling = (ROOT / "README.md").read_text(), (ROOT / "docs/explanation/scaling.md").read_text()
    senders, rows = (re.findall(table, each, re.MULTILINE) for each in (text, scaling))
    assert senders == rows
    assert len(senders) > 3
    for at in (1, 3):
        rates = [int(row[at].replace(",", "")) for row in rows]
        assert [round(rate / rates[0], 2) for rate in rates] == [float(row[at + 1]) for row in rows]
    assert "Of 300 webhooks, 0 are lost" in text
    assert "of 300 webhooks, 0 are lost" in " ".join(scaling.split())
    (node,) = re.findall(r"A webhook node takes ([\d.]+ ms)", text)
    assert f"| {node} (" in scaling


def test_the_readme_has_exactly_two_commands() -> None:
    """One runs the main job, one the tests; each is a single line that sets up what it needs."""
    blocks = re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines()]
    assert len(commands) == 2
    for command in commands:
        assert shlex.split(command)[:4] == ["python3", "-m", "venv", ".venv"]
    assert commands[0].endswith("flowactions-demo")
    assert commands[1].endswith("python -m pytest -n auto")
