"""The functions of docs/how-to/receive-webhooks.md, taken from the page, built, and run as processes.

A function is tried as it stands there: the page's block goes into a file with, or beside, a harness of its language, which
reads cases from its input or serves HTTP.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

HERE: Final = Path(__file__).parent
PAGE: Final = HERE.parents[1] / "docs" / "how-to" / "receive-webhooks.md"


class Language(NamedTuple):
    """How a function of the page becomes a process.

    Attributes:
        title: of its section on the page.
        fence: of its block.
        command: what has to be on the path.
        block: the file that the block is written to.
        harness: what is appended to the block, or lies beside it.
        run: the command that runs it.
        build: the command that compiles it; empty: none.
        beside: whether the harness is a file of its own.
    """

    title: str
    fence: str
    command: str
    block: str
    harness: str
    run: Sequence[str]
    build: Sequence[str] = ()
    beside: bool = False

    def function(self) -> str:
        """Takes the function from the page: the first block of its section."""
        text = PAGE.read_text()
        section = text.partition(f"### {self.title}\n")[2].partition("\n##")[0]
        found = re.search(rf"```{self.fence}\n(.*?)```", section, re.DOTALL)
        assert found is not None, f"the page has no block for {self.title}"
        return found[1]

    def place(self, folder: Path) -> None:
        """Writes and compiles the program.

        The test is skipped where the language is missing, but not in CI.
        """
        if shutil.which(self.command) is None:
            assert os.environ.get("CI") != "true", f"in CI this must run: install {self.command}"
            pytest.skip(f"there is no {self.command} on this machine")
        harness = (HERE / self.harness).read_text()
        if self.beside:
            (folder / self.block).write_text(self.function())
            (folder / self.harness).write_text(harness)
        else:
            (folder / self.block).write_text(f"{self.function()}\n{harness}")
        if self.build:
            subprocess.run(self.build, cwd=folder, check=True, timeout=300, env=self._environment)

    @property
    def _environment(self) -> Mapping[str, str]:
        """Go looks for no module and fetches no other release of itself."""
        return {**os.environ, "GO111MODULE": "off", "GOTOOLCHAIN": "local", "CGO_ENABLED": "0"}

    def verdicts(self, folder: Path, cases: Sequence[Mapping[str, Any]]) -> list[str]:
        """Asks the function for all cases, in one process: ``true``, ``false``, or ``refused`` with an error.

        It is asked with headers and body in each form in which servers give them, and has to say the same. What is
        no such form has to be refused.
        """
        done = subprocess.run(
            [*self.run, "cases"],
            cwd=folder,
            input="".join(f"{line_of(case)}\n" for case in cases),
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        assert done.stderr == ""
        return done.stdout.splitlines()

    @contextmanager
    def serving(self, folder: Path, secrets: Sequence[str]) -> Iterator[int]:
        """Runs a receiver; gives its port."""
        command = [*self.run, "serve", encoded(secrets)]
        environment = dict(os.environ)
        if self.title == "PHP":
            command = [self.command, "-S", "127.0.0.1:0", self.block]
            environment["SECRETS"] = encoded(secrets)
        process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        )
        try:
            assert process.stdout is not None
            found = re.search(r"(\d+)(?:\) started)?$", process.stdout.readline().strip())
            assert found is not None, f"the receiver in {self.title} did not start"
            yield int(found[1])
        finally:
            process.kill()
            process.communicate()


def encoded(texts: Sequence[str]) -> str:
    """Writes texts so that every language reads them without a library; each may be empty."""
    return ",".join(f":{_base64(text)}" for text in texts)


def line_of(case: Mapping[str, Any]) -> str:
    """Writes a case: time, secrets, headers, body, and the events of AWS Lambda in JSON, with tabs between them."""
    secrets = case["secrets"]
    if is_secrets(secrets):
        written = f"={_base64(secrets)}" if isinstance(secrets, str) else encoded(secrets)
    else:
        written = f"!{_base64(json.dumps(secrets))}"
    headers = ",".join(f"{_base64(name)}:{_base64(value)}" for name, value in case["headers"])
    return "\t".join([str(case["now"]), written, headers, case["body"], _base64(json.dumps(events(case)))])


def events(case: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Makes the events in which AWS Lambda gives a request: of REST and HTTP APIs, a body as text or in base64."""
    lists: dict[str, list[str]] = {}
    joined: dict[str, str] = {}
    for name, value in case["headers"]:
        lists.setdefault(name, []).append(value)
        key = name.lower()
        joined[key] = f"{joined[key]},{value}" if key in joined else value
    last = {name: values[-1] for name, values in lists.items()}
    body = base64.b64decode(case["body"])
    bodies: list[tuple[str | None, bool]] = [(case["body"], True)]
    with suppress(UnicodeDecodeError):
        bodies.append((body.decode() or None, False))
    first = {"resource": "/", "headers": last or None, "multiValueHeaders": lists or None}
    second = {"version": "2.0", "headers": joined, "requestContext": {"http": {"method": "POST"}}}
    return [
        {**made, "body": text, "isBase64Encoded": encoded}
        for made in (first, second)
        for text, encoded in bodies
    ]


def is_secrets(value: object) -> bool:
    """Whether this is one secret or several: the compilers of Go and Java take nothing else."""
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(each, str) for each in value))


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


LANGUAGES: Final = (
    Language(
        "Python",
        "python",
        command=sys.executable,
        block="function.py",
        harness="receiver.py",
        run=[sys.executable, "receiver.py"],
        beside=True,
    ),
    Language("Node.js", "js", "node", "receiver.mjs", "harness.mjs", run=["node", "receiver.mjs"]),
    Language(
        "Go",
        "go",
        command="go",
        block="verify.go",
        harness="main.go",
        run=["./receiver"],
        build=["go", "build", "-o", "receiver"],
        beside=True,
    ),
    Language(
        "Java",
        "java",
        command="javac",
        block="Webhooks.java",
        harness="Main.java",
        run=["java", "-XX:TieredStopAtLevel=1", "Main"],
        build=["javac", "-Xlint:all", "-Werror", "Main.java", "Webhooks.java"],
        beside=True,
    ),
    Language("Ruby", "ruby", "ruby", "receiver.rb", "harness.rb", run=["ruby", "-w", "receiver.rb"]),
    Language("PHP", "php", "php", "receiver.php", "harness.php", run=["php", "receiver.php"]),
)
