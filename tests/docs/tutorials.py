"""Follows a tutorial literally, in an empty folder: ``python -m tests.docs.tutorials litestar-host``.

What a page's fenced blocks mean:

- ``python app.py``, or any language with a file's name: the file is written, with exactly this text.
- ``console``: each line after ``$`` is run, and has to end with success; the lines below it are what it writes.
- ``console host``: the command goes on running in a terminal of its own, called ``host``, and writes these lines. A second
  command in the same terminal comes after Ctrl+C; a block without a command is what the running one writes next.
- ``text browser``: what a person does in a browser: ``open`` a URL, ``click`` a link or button, ``see`` a text.

``…`` stands for the rest of a line, and alone on a line for any number of lines. Ports are replaced by free ones. The real pip
installs what the page says; pages whose lines for it are the same share the environment, unless they install a project of
their own.
"""

from __future__ import annotations

import argparse
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from playwright.sync_api import Error, Page, sync_playwright

from tests.docs.environments import INSTALL, copy, place, run, shared, variables
from tests.docs.fences import ROOT, Block, blocks_of
from tests.loopback import held_port

FOLDER: Final = ROOT / "docs" / "tutorials"
NAMES: Final = ("litestar-host", "fastapi-host", "django-host", "a-node-type-of-your-own")
PORTS: Final = ("8000", "8081", "8420")
WAIT_SECONDS: Final = 300.0
"""For what a page shows: a machine reaches it only when it will not come."""

STATED: Final = re.compile(r"(\d+)\s+lines\s+of\s+Python")


FOLLOWS: Final = re.compile(r"^Follow \[[^]]+\]\(([\w-]+\.md)\)", re.MULTILINE)
LEFT_OUT: Final = re.compile(r"^Leave out `([^`]+)`", re.MULTILINE)
"""How a page says that it is another one with differences."""


class NotAsWritten(AssertionError):
    """Following the page, something else came of it."""


class Followed(NamedTuple):
    """What a page takes.

    Attributes:
        lines: of Python that are neither empty nor comments, of the files as they are in the end.
        commands: that are typed.
        seconds: that a script needs, which reads nothing.
    """

    lines: int
    commands: int
    seconds: float


def stated_lines(name: str) -> int:
    """Give the number of lines of Python that a page says it takes."""
    found = STATED.search((FOLDER / f"{name}.md").read_text())
    assert found is not None, f"{name}.md does not say how many lines of Python it takes"
    return int(found[1])


def follow(page: Path, parent: Path, store: Path, *, pace: float = 0.0) -> Followed:
    """Follow a page in an empty folder.

    Args:
        page: a tutorial, or a guide that is one.
        parent: where the folder is made.
        store: where environments are that pages share.
        pace: the seconds that pass before each step, as with a person who reads.

    Raises:
        NotAsWritten: a command fails, or does not write what the page shows.
    """
    begun = time.monotonic()
    folder = place(parent)
    blocks = blocks_to_follow(page)
    with ExitStack() as stack:
        reader = Reader(folder, stack, pip_lines(blocks), store)
        for block in blocks:
            time.sleep(pace)
            reader.do(block)
    lines = sum(_lines(folder / path) for path in reader.written if path.endswith(".py"))
    return Followed(lines, reader.commands, time.monotonic() - begun)


def blocks_to_follow(page: Path) -> list[Block]:
    """Return the blocks of a page; if it follows another page, those of that one, with its own files in place of theirs."""
    text = page.read_text()
    other = FOLLOWS.search(text)
    if other is None:
        return blocks_of(page)
    own = {block.words: block for block in blocks_of(page)}
    blocks = [own.pop(block.words, block) for block in blocks_of(page.parent / other[1])]
    assert not own, "the page has files that the other one has not"
    for line in LEFT_OUT.findall(text):
        assert any(f"$ {line}\n" in block.text for block in blocks), line
        blocks = [block._replace(text=block.text.replace(f"$ {line}\n", "")) for block in blocks]
    return blocks


def pip_lines(blocks: Iterable[Block]) -> list[str]:
    """Return the lines by which blocks install something."""
    lines = [line.removeprefix("$ ") for block in blocks for line in block.text.splitlines()]
    return [line for line in lines if line.startswith(".venv/bin/pip install ")]


def _lines(path: Path) -> int:
    lines = (line.strip() for line in path.read_text().splitlines())
    return sum(1 for line in lines if line and not line.startswith("#"))


class Reader:
    """Who follows a page.

    Args:
        folder: where; files of the page are relative to it.
        stack: ends what was started.
        pip_lines: all by which the page installs something.
        store: where environments are that pages share.

    Attributes:
        written: the names of the files that the page has had written.
        commands: how many were typed.
    """

    def __init__(self, folder: Path, stack: ExitStack, pip_lines: Sequence[str], store: Path) -> None:
        self.written: dict[str, None] = {}
        self.commands = 0
        self._folder = folder
        self._stack = stack
        self._ports = {port: str(stack.enter_context(held_port())) for port in PORTS}
        self._terminals: dict[str, Terminal] = {}
        self._page: Page | None = None
        self._pip_lines = pip_lines
        self._store = store
        self._environment = {**variables(), "PYTHONUNBUFFERED": "1", "COLUMNS": "200", "NO_COLOR": "1"}

    def do(self, block: Block) -> None:
        """Do what a block says."""
        text = re.sub(rf"\b({'|'.join(PORTS)})\b", lambda found: self._ports[found[1]], block.text)
        word = block.words[0] if block.words else ""
        try:
            self._do(block.language, word, text)
        except NotAsWritten as exc:
            raise NotAsWritten(f"{block}: {exc}") from None

    def _do(self, language: str, word: str, text: str) -> None:
        if (language, word) == ("text", "browser"):
            self._browse(text)
        elif language == "console":
            self._type(text, word)
        elif word:
            self._write(word, text)
        elif language != "text":
            raise NotAsWritten("nothing says what is done with this block")

    def _write(self, name: str, text: str) -> None:
        path = self._folder / name
        assert path.resolve().is_relative_to(self._folder.resolve())
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        self.written[name] = None

    def _type(self, text: str, terminal: str) -> None:
        before, *entries = re.split(r"^\$ ", text, flags=re.MULTILINE)
        if before:
            if terminal not in self._terminals:
                raise NotAsWritten(f"no command was typed in the terminal {terminal or 'of the reader'}")
            self._terminals[terminal].expect(before)
        for entry in entries:
            command, expected = _split(entry)
            self.commands += 1
            if not terminal:
                shown = self._run(command)
                if re.fullmatch(_pattern(expected), shown) is None:
                    raise NotAsWritten(f"$ {command}\nwrites\n{shown}\nand not\n{expected}")
                continue
            if terminal in self._terminals:
                self._terminals[terminal].interrupt()
            started = Terminal(command, self._folder, self._environment)
            self._stack.callback(started.end)
            self._terminals[terminal] = started
            started.expect(expected)

    def _run(self, command: str) -> str:
        venv = self._folder / ".venv"
        if command == "python3 -m venv .venv":
            if any("--editable" in line for line in self._pip_lines):
                copy(shared([INSTALL], self._store), self._folder)
            else:
                venv.symlink_to(shared(self._pip_lines, self._store))
            return ""
        if command == INSTALL or (command in self._pip_lines and venv.is_symlink()):
            return ""  # it was installed with the environment
        try:
            shown = run(command, self._folder, self._environment)
        except AssertionError as exc:
            raise NotAsWritten(str(exc)) from None
        # What ends without a line break is followed by the prompt.
        return shown if shown.endswith("\n") or not shown else f"{shown}\n"

    def _browse(self, text: str) -> None:
        if self._page is None:
            self._page = self._stack.enter_context(browser_page())
        for line in text.splitlines():
            try:
                _act(self._page, *line.split(maxsplit=1))
            except Error as exc:
                raise NotAsWritten(f"{line}: {exc}; the page:\n{self._page.content()}") from exc


def _act(page: Page, verb: str, what: str) -> None:
    if verb == "open":
        page.goto(what)
    elif verb == "click":
        page.get_by_text(what, exact=True).click()
    elif verb == "see":
        page.get_by_text(what).first.wait_for()
    else:
        raise NotAsWritten(f"nobody can {verb!r} in a browser")


class Terminal:
    """A command that goes on running, and what it writes.

    Args:
        command: as it is typed.
        folder: the working directory.
        environment: its variables.
    """

    def __init__(self, command: str, folder: Path, environment: Mapping[str, str]) -> None:
        self._command = command
        self._seen = 0
        self._file = tempfile.NamedTemporaryFile()  # noqa: SIM115  closed by `end`
        self._process = subprocess.Popen(
            ["bash", "-c", command],  # noqa: S607  which becomes the command, so that a signal reaches it
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=self._file,
            stderr=subprocess.STDOUT,
        )

    def expect(self, lines: str) -> None:
        """Wait until it has written these lines, behind those that were expected before."""
        until = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < until:
            text = Path(self._file.name).read_text(errors="replace")
            found = re.compile(_pattern(lines), re.MULTILINE).search(text, self._seen)
            if found is not None:
                self._seen = found.end()
                return
            if self._process.poll() is not None:
                raise NotAsWritten(f"{self._command} ended with {self._process.returncode}:\n{text}")
            time.sleep(0.02)
        raise NotAsWritten(f"{self._command} has not written\n{lines}\nbut\n{text[self._seen :]}")

    def interrupt(self) -> None:
        """Press Ctrl+C, and wait for the end."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(WAIT_SECONDS)

    def end(self) -> None:
        """End it, whatever it does."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._file.close()


def _split(entry: str) -> tuple[str, str]:
    """Tell a command, over several lines if they end with a backslash, from what it writes."""
    lines = entry.splitlines(keepends=True)
    count = next(number for number, line in enumerate(lines, 1) if not line.endswith("\\\n"))
    return "".join(lines[:count]).strip(), "".join(lines[count:])


def _pattern(lines: str) -> str:
    parts = []
    for line in lines.splitlines():
        if line == "…":
            parts.append(r"(?:.*\n)*?")
        else:
            parts.append(re.escape(line.rstrip()).replace("…", ".*") + r"[ ]*\n")
    return "".join(parts)


def chromium() -> str | None:
    """Find the browser of this machine."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@contextmanager
def browser_page() -> Iterator[Page]:
    """Open a page of a browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.set_default_timeout(WAIT_SECONDS * 1000)
        yield page
        browser.close()


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.docs.tutorials", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("name", nargs="*", choices=[[], *NAMES], help="of the page (default: all)")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds before each step (default: none)")
    options = parser.parse_args()
    for name in options.name or NAMES:
        with tempfile.TemporaryDirectory() as folder:
            took = follow(FOLDER / f"{name}.md", Path(folder), Path(folder) / "shared", pace=options.pace)
        sys.stdout.write(
            f"{name}: {took.lines} lines of Python, {took.commands} commands, {took.seconds:.1f} s\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
