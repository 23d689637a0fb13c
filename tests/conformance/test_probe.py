"""The probe as an installed plugin: there when the environment asks for it, and for nobody else."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from flowactions_conformance.kit.probing.control import Control
from flowactions_conformance.kit.probing.installed import INSTALLED
from flowactions_conformance.kit.probing.plugin import ROUTES, TOKEN, _State
from flowactions_conformance.reference_host import create_app
from flowactions_conformance.reference_host.app import ReferenceApp
from flowactions_conformance.serving import serve
from flowactions_conformance.variables import PROBE, PROBE_TOKEN
from flowactions_hookspecs import PluginInvalid
from tests.loopback import listening
from tests.support import SmallHost

DEVELOPMENT = {"FLOWACTIONS_ENVIRONMENT": "development"}
SAFETY_SECONDS = 300


def made(tmp_path: Path, **settings: str) -> ReferenceApp:
    return create_app({**DEVELOPMENT, **settings}, tmp_path / "host.db")


@pytest.fixture
def asked_for(monkeypatch: pytest.MonkeyPatch) -> str:
    """The environment of `serve-env`, whose address nobody listens at; gives the token."""
    monkeypatch.setenv(PROBE, "http://127.0.0.1:1")
    monkeypatch.setenv(PROBE_TOKEN, "t0ken")
    return "t0ken"


class TestPresence:
    """Whether it is a plugin."""

    def test_without_its_variable_it_is_no_plugin(self, tmp_path: Path) -> None:
        """No list names it, and nothing of the kit is imported for it."""
        assert INSTALLED not in made(tmp_path).actions.plugin_names
        code = (
            "import sys\n"
            "from importlib.metadata import entry_points\n"
            f"(probe,) = entry_points(group='flowactions', name={INSTALLED!r})\n"
            "before = set(sys.modules)\n"
            "assert probe.load() is None\n"
            "print(sorted(name for name in set(sys.modules) - before - {'__future__'}))\n"
        )
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert (
            told.stdout
            == "['flowactions_conformance', 'flowactions_conformance.probe', 'flowactions_conformance.variables']\n"
        )

    def test_with_its_variable_it_is_one_like_any_other(self, asked_for: str, tmp_path: Path) -> None:
        """Its node type is in the palette. The variables are no settings, also if the host hands on its environment."""
        actions = made(tmp_path, **{PROBE: "http://127.0.0.1:1", PROBE_TOKEN: asked_for}).actions
        assert INSTALLED in actions.plugin_names
        assert "probe" in actions.node_types

    def test_without_a_token_the_host_does_not_start(
        self, asked_for: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """Else everybody could use its routes."""
        monkeypatch.setenv(PROBE_TOKEN, "")
        with pytest.raises(PluginInvalid, match=f"{PROBE} is set, and {PROBE_TOKEN} is not"):
            made(tmp_path)

    @pytest.mark.parametrize("said", ["production", ""])
    def test_a_host_of_production_does_not_start(self, asked_for: str, tmp_path: Path, said: str) -> None:
        """By its settings, whose default is production."""
        with pytest.raises(
            PluginInvalid, match=f"{PROBE} is set, and FLOWACTIONS_ENVIRONMENT is not development"
        ):
            made(tmp_path, FLOWACTIONS_ENVIRONMENT=said)

    def test_a_process_of_production_does_not_start(
        self, asked_for: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """By its environment, whatever the settings say."""
        monkeypatch.setenv("FLOWACTIONS_ENVIRONMENT", "production")
        with pytest.raises(PluginInvalid, match="Remove FLOWACTIONS_CONFORMANCE_PROBE"):
            made(tmp_path)


class TestToken:
    """Who may use it."""

    @pytest.mark.parametrize("headers", [{}, {TOKEN: ""}, {TOKEN: "wrong"}, {TOKEN: "t0ken2"}])
    async def test_its_routes_answer_with_the_token_only(
        self, asked_for: str, tmp_path: Path, headers: dict[str, str]
    ) -> None:
        """To everybody else they are not there."""
        async with (
            serve(made(tmp_path).app) as url,
            httpx.AsyncClient(base_url=url, timeout=SAFETY_SECONDS) as client,
        ):
            for method, path in (("GET", "echo"), ("POST", "answer"), ("POST", "enqueue"), ("POST", "crash")):
                answer = await client.request(method, f"{ROUTES}/{path}", headers=headers, json={})
                assert answer.status_code == 404
            known = await client.get(f"{ROUTES}/echo", headers={TOKEN: asked_for})
            assert known.status_code == 200
            assert asked_for not in known.text

    async def test_its_reports_carry_the_token_and_no_setting(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """A host may hand on its whole environment: values are reported as digests."""
        control = Control()
        async with control.running():
            monkeypatch.setenv(PROBE, control.url)
            monkeypatch.setenv(PROBE_TOKEN, control.token)
            # The probe's first report is sent while the host is loaded: this loop has to answer it.
            host = await asyncio.to_thread(made, tmp_path, OTHER="hidden-value")
            async with serve(host.app):
                pass
        kinds = [event.kind for event in control.events]
        assert kinds[0] == "loaded"
        assert {"opened", "closed"} <= set(kinds)
        assert "hidden-value" not in str(control.events)

    async def test_a_served_host_s_processes_belong_to_the_start_in_which_they_came(self) -> None:
        """Also when one of an earlier start reports late."""
        control = Control()
        for start, pid in (("first", "1-a"), ("second", "2-b"), ("second", "1-a"), ("second", "2-c")):
            control.present = start
            control.keep({"kind": "opened", "host": "ignored", "pid": pid}, 0.0)
        assert [event.host for event in control.events] == ["first", "second", "first", "second"]


async def test_a_report_without_an_answer_is_sent_again() -> None:
    """Once. A report that is answered is not sent again, and a kit that has ended causes no error."""
    bodies: list[bytes] = []

    async def control(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        bodies.append(await reader.readexactly(length))
        if len(bodies) > 1:
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    async with listening(control) as port:
        state = _State(f"http://127.0.0.1:{port}", "token", "probe", SmallHost({}), cast("Any", None))
        await state.report("reached", node="n")
    assert [json.loads(each)["node"] for each in bodies] == ["n", "n"]
    await state.report("reached", node="n")
