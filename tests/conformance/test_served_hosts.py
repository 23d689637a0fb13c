"""A host that somebody else has started: found by `serve-env`, checked at its address, also behind nginx."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import httpx
import pytest

from flowactions_conformance.kit import hand_over
from flowactions_conformance.kit.bench import AUTH_SECRET, Bench
from flowactions_conformance.kit.hand_over import ServedAt, borrowed, read_environment, written
from flowactions_conformance.kit.outcomes import DriverFault, Report, Status
from flowactions_conformance.kit.probing.plugin import TOKEN
from flowactions_conformance.kit.report.terminal import report_text
from flowactions_conformance.kit.runner import run_checks
from flowactions_conformance.reference_host import create_app
from flowactions_conformance.serving import listen, serve
from flowactions_conformance.variables import DESK, PROBE, PROBE_TOKEN
from tests.conformance import served
from tests.conformance.hosts import restarted_host
from tests.loopback import held_port
from tests.waiting import until

RESTARTING = "tests.conformance.hosts.restarted_host:make_driver"
SAFETY_SECONDS = 300


async def checked(place: ServedAt, *ids: str, driver: str = served.DRIVER) -> Report:
    return await run_checks(driver, ids, served=place)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedAt]:
    """A reference host in one process, with no proxy before it."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "served.env").touch(0o644)
    with (
        held_port() as port,
        served.serve_env(folder, served.url_of(port), "--inbound") as found,
        served.host(folder, found.environ, port),
    ):
        yield found


def outcomes(report: Report) -> dict[str, Status]:
    assert report.error is None, report.error
    return {result.id: result.status for result in report.results}


def said(report: Report) -> str:
    return "\n".join(str(result.finding) for result in report.results if result.finding is not None)


class TestRun:
    """``run --env … --driver …``."""

    async def test_the_same_checks_run_over_a_host_that_is_already_served(self, place: ServedAt) -> None:
        """Again and again: `serve-env` hands over to each run, and what processes reported before is not lost."""
        ids = ("LOAD-1", "TASK-1", "HTTP-1", "HTTP-13", "EAGER-2")
        for _ in range(2):
            assert outcomes(await checked(place, *ids)) == dict.fromkeys(ids, Status.PASS)

    async def test_what_only_the_kit_can_start_is_not_tried(self, place: ServedAt) -> None:
        """With the reason; a method that reaches into the host's process may be left out, too."""
        expected = {
            "LOAD-3": "it needs a host or a process that the kit itself starts",
            "TASK-3": "the driver has no restart()",
            "DURABILITY-2": "the driver has no kill()",
            "DURABILITY-3": "the driver has no fail_commit()",
            "SCALE-1": "only one process of the host answers",
        }
        report = await checked(place, *expected)
        assert outcomes(report) == dict.fromkeys(expected, Status.NOT_TRIED)
        found = {result.id: result.finding.message for result in report.results if result.finding is not None}
        assert found == expected
        assert report.exit_status == 1  # nothing was tried

    @pytest.mark.ci
    async def test_the_report_says_what_is_known_of_a_served_host(self, place: ServedAt) -> None:
        """How to run a check again; interpreter and plugin as the probe tells them; no distribution."""
        report = await checked(place, "LOAD-2")
        assert report.mode == "served"
        assert report.tested["host"] == "runs elsewhere"
        assert report.tested["plugin"].startswith("flowactions-plugin ")
        rerun = f"--env {place.file} --driver {served.DRIVER} --check LOAD-2 --seed {report.seed}"
        assert report.results[0].rerun == f"python -m flowactions_conformance run {rerun}"

    @pytest.mark.ci
    async def test_a_second_run_and_one_without_serve_env_are_told(
        self, place: ServedAt, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two runs would take each other's webhooks."""
        bench = Bench(place.environ[PROBE_TOKEN])
        async with borrowed(place.environ, bench.control) as listeners, bench.serving(listeners):
            monkeypatch.setattr(hand_over, "HAND_OVER_SECONDS", 1.0)
            second = await checked(place, "LOAD-1")
        gone = await checked(place._replace(environ={**place.environ, DESK: "/no/such/desk"}), "LOAD-1")
        for report in (second, gone):
            assert report.error is not None
            assert "another run uses it, or it has ended" in report.error.message
            assert report.exit_status == 2

    @pytest.mark.ci
    async def test_a_host_without_the_probe_is_told(self, tmp_path: Path) -> None:
        """And before that, one at whose address nothing answers."""
        with ExitStack() as stack:
            port = stack.enter_context(held_port())
            url = served.url_of(port)
            place = await asyncio.to_thread(stack.enter_context, served.serve_env(tmp_path, url, "--inbound"))
            report = await checked(place, "LOAD-1")
            assert report.error is not None
            assert f"nothing answers at {url}" in report.error.message
            settings = {"FLOWACTIONS_ENVIRONMENT": "development"}
            made = create_app(settings, tmp_path / "host.db")
            async with serve(made.app, listen(port)):
                report = await checked(place, "LOAD-1")
            assert report.error is not None
            assert f"the host at {url} has not loaded the probe" in report.error.message


class TestHandOver:
    """`serve-env` and a run."""

    @pytest.mark.ci
    async def test_no_report_is_lost_between_serve_env_and_a_run(self, place: ServedAt) -> None:
        """Who reports while neither serves waits for the one that comes; the other learns of it afterwards."""
        for number in range(2):
            bench = Bench(place.environ[PROBE_TOKEN])
            async with borrowed(place.environ, bench.control) as listeners:
                known = [event.pid for event in bench.control.events if event.kind == "opened"]
                reporting = asyncio.create_task(_report(place.environ, "opened", f"process-{number}"))
                async with bench.serving(listeners):
                    assert await reporting == 204
            assert [each for each in known if each.startswith("process-")] == ["process-0"] * number

    @pytest.mark.ci
    async def test_a_run_that_is_killed_leaves_serve_env_to_the_next(self, place: ServedAt) -> None:
        """Also when it was in the middle of a line."""
        with socket.socket(socket.AF_UNIX) as killed:
            killed.connect(place.environ[DESK])
            killed.sendall(b'[1.0, {"kin')
        async with borrowed(place.environ, Bench().control):
            pass

    @pytest.mark.parametrize("token", ["", "wrong"])
    async def test_reports_are_taken_with_the_token_only(self, place: ServedAt, token: str) -> None:
        """Anybody on the machine can connect."""
        assert await _report({**place.environ, PROBE_TOKEN: token}, "opened", "nobody") == 403

    def test_the_environment_is_for_a_shell_and_for_nobody_else(self, tmp_path: Path) -> None:
        """Whatever its values hold, it is read as it was written."""
        environ = {"A": "it's $HOME `x` \\ ü", "B": "", "C": "a=b # c", DESK: "/desk"}
        file = tmp_path / "env"
        file.write_text(f"# a comment\n{written(environ)}")
        assert read_environment(file) == (file, environ)
        command = f'set -a; . {file}; set +a; printf \'%s|\' "$A" "$B" "$C"'
        told = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True)
        assert told.stdout == "".join(f"{environ[name]}|" for name in "ABC")
        (tmp_path / "other").write_text("something else")
        with pytest.raises(DriverFault, match="it has to hold lines NAME=value"):
            read_environment(tmp_path / "other")

    @pytest.mark.ci
    async def test_the_file_is_its_owners(self, place: ServedAt) -> None:
        """It holds keys; also when there was one that others could read. What a driver claims is in it when it was asked for."""
        assert stat.S_IMODE(place.file.stat().st_mode) == 0o600
        without = {name: value for name, value in place.environ.items() if name != AUTH_SECRET}
        report = await checked(place._replace(environ=without), "INBOUND-1")
        assert report.error is not None
        assert "the driver claims inbound: start serve-env with --inbound" in report.error.message


async def _report(environ: Mapping[str, str], kind: str, pid: str) -> int:
    report, headers = {"kind": kind, "host": None, "pid": pid}, {TOKEN: environ[PROBE_TOKEN]}
    async with httpx.AsyncClient(trust_env=False, timeout=SAFETY_SECONDS) as client:
        return (await client.post(environ[PROBE], json=report, headers=headers)).status_code


@pytest.mark.ci
def test_the_guide_can_be_followed(tmp_path: Path, port: int) -> None:
    """Its three terminals, line by line; the port is another, and of the checks two are run.

    In the third terminal, the line by which a check is run again is one that can be typed there.
    """
    page = (served.ROOT / "docs" / "how-to" / "prove-your-host.md").read_text()
    section = page.partition("## A host that is already served\n")[2].partition("\n## ")[0]
    first, second, third = (
        block.replace("8000", str(port)) for block in re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    )
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def terminal(lines: str, log: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
        return served.process(["sh", "-c", f"cd {tmp_path}\n{lines}"], environ, tmp_path / log)

    with terminal(first, "first.log") as serving:
        served.until(lambda: (tmp_path / "first.log").read_text().endswith("Ctrl+C.\n"), serving)
        with terminal(second, "second.log") as running:
            served.until(lambda: served.serves(served.url_of(port)), running)
            with terminal(f"{third.rstrip()} --check HALT-1 --check LOAD-3\n", "third.log") as checking:
                assert checking.wait(SAFETY_SECONDS) == 0
            (again,) = re.findall(r"^  rerun     (.+)$", (tmp_path / "third.log").read_text(), re.MULTILINE)
            with terminal(f"{again}\n", "again.log") as checking:
                assert checking.wait(SAFETY_SECONDS) == 1
    assert "1 passed" in (tmp_path / "third.log").read_text()
    assert "NOT TRIED  LOAD-3" in (tmp_path / "again.log").read_text()


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, int, int, ServedAt]]:
    """A reference host in three processes, with the folder and the port of an nginx before it, and its own port."""
    folder = tmp_path_factory.mktemp("nginx")
    with (
        held_port() as port,
        held_port() as inner,
        served.serve_env(folder, f"{served.url_of(port)}/flows", "--inbound") as found,
        served.host(folder, found.environ, inner, 3),
    ):
        yield folder, port, inner, found


@pytest.mark.ci
class TestBehindNginx:
    """Three processes under uvicorn, behind a real nginx, below a path."""

    async def test_a_host_behind_a_good_nginx_is_not_blamed(
        self, behind: tuple[Path, int, int, ServedAt]
    ) -> None:
        """With gzip, a limit for bodies, and requests that are sent again when they did not reach the host."""
        folder, port, inner, place = behind
        with served.nginx(folder, port, inner) as url:
            async with httpx.AsyncClient(timeout=SAFETY_SECONDS) as client:
                gzipped = await client.get(f"{url}/nothing", headers={"accept-encoding": "gzip"})
            assert gzipped.headers["content-encoding"] == "gzip"
            report = await checked(place, "LOAD", "HTTP", "AUTH", "EAGER-2", "PACING-4", "SCALE")
        others = {id_: state for id_, state in outcomes(report).items() if state is not Status.PASS}
        assert others == dict.fromkeys(("LOAD-3", "SCALE-4"), Status.NOT_TRIED), said(report)
        assert report.exit_status == 0
        assert "scale       not proved: a required check was not tried 2 passed" in report_text(report)

    async def test_an_nginx_that_refuses_bodies_is_found(self, behind: tuple[Path, int, int, ServedAt]) -> None:
        """The message says what it answered, and the causes where to look."""
        folder, port, inner, place = behind
        with served.nginx(folder, port, inner, body="16k"):
            report = await checked(place, "HTTP-13", "HTTP-1")
        assert outcomes(report) == {"HTTP-13": Status.FAIL, "HTTP-1": Status.PASS}
        assert "did not reach the plugin: it was answered 413" in said(report)
        assert "a proxy before it has a limit for bodies" in said(report)

    async def test_an_nginx_that_repeats_requests_is_found(
        self, behind: tuple[Path, int, int, ServedAt]
    ) -> None:
        """After an answer with an error it asks another process, which has the same effect once more."""
        folder, port, inner, place = behind
        again = "error timeout http_503 non_idempotent"
        with served.nginx(folder, port, inner, again=again, entries=2):
            report = await checked(place, "HTTP-13", "HTTP-1")
        assert outcomes(report) == {"HTTP-13": Status.FAIL, "HTTP-1": Status.PASS}
        assert "which the plugin answers with 503, did not reach the plugin once" in said(report)


@pytest.mark.ci
class TestRestarts:
    """A driver that can restart and kill the host."""

    async def test_what_needs_a_restart_or_a_kill_is_tried(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One after the other, after all others; processes of each start are told apart."""
        monkeypatch.setenv(restarted_host.GROUP_FILE, str(tmp_path / "group"))
        with ExitStack() as stack:
            port = stack.enter_context(held_port())
            url = served.url_of(port)
            monkeypatch.setenv(restarted_host.PORT, str(port))
            place = await asyncio.to_thread(stack.enter_context, served.serve_env(tmp_path, url, "--inbound"))
            restarted_host.start(place.environ)
            try:
                await until(lambda: served.serves(url), SAFETY_SECONDS)
                ids = (
                    *("HALT-1", "TASK-2", "TASK-3", "SCALE-2", "SCALE-4"),
                    *("DURABILITY-1", "DURABILITY-2"),
                )
                report = await checked(place, *ids, driver=RESTARTING)
            finally:
                served.end(int((tmp_path / "group").read_text()), signal.SIGKILL)
        expected = {**dict.fromkeys(ids, Status.PASS), "SCALE-4": Status.NOT_TRIED}
        assert outcomes(report) == expected, said(report)
        assert report.database == "sqlite"
