"""What is checked of a page's fenced block, by its language, where no test runs it."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stderr, redirect_stdout, suppress
from typing import Final

import click
import yaml

from flowactions_conformance.__main__ import main as conformance
from flowactions_plugin.cli.commands import flowactions
from flowactions_plugin.settings.model import READERS
from tests.docs.fences import ROOT, Block


class Wrong(AssertionError):
    """A block cannot be right."""


OTHERS: Final = frozenset(
    {
        ".",
        "bash",
        "cd",
        "cp",
        "echo",
        "export",
        "mkdir",
        "pip",
        "printf",
        "psql",
        "pytest",
        "set",
        "sleep",
    }
)
"""Programs that are not this project's: the shell parses their lines, and that is all."""

ROUTES: Final = ROOT / "docs" / "reference" / "http.md"

PLACEHOLDERS: Final = {"<url>": "https://example.com", "<id>": "0", "…": "x"}
"""What a reader replaces."""

SETTINGS: Final = r"((?:FLOWACTIONS|CHAT|BACKEND|AUTH)_[A-Z_]+)"
SETTING: Final = re.compile(rf"^{SETTINGS}=", re.ASCII)
INTERNAL: Final = ("FLOWACTIONS_TEST_", "FLOWACTIONS_CONFORMANCE_")
"""Variables of the tests and of the kit, which are no settings."""


def typed(block: Block) -> Iterator[str]:
    """Give the lines of a block that a reader types, continued ones as one."""
    text = block.text.replace("\\\n", " ")
    if block.language == "console":
        yield from re.findall(r"^\$ (.*)", text, re.MULTILINE)
    elif block.language == "sh":
        yield from (line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#"))


def check_shell(block: Block) -> None:
    """Parse the lines, and find that their commands, options and settings exist."""
    parsed = subprocess.run(
        ["bash", "-n"],  # noqa: S607  whichever the reader has
        input=block.text,
        capture_output=True,
        text=True,
        check=False,
    )
    if parsed.returncode:
        raise Wrong(parsed.stderr)
    for line in typed(block):
        check_line(line)


def check_console(block: Block) -> None:
    """Check the lines that are typed; what they write is of one day."""
    lines = list(typed(block))
    if not lines:
        raise Wrong("no line begins with $")
    for line in lines:
        check_line(line)


def check_line(line: str) -> None:
    """Check a line of a shell.

    Raises:
        Wrong: it names a program, module, command, option or setting that nobody knows.
    """
    for placeholder, value in PLACEHOLDERS.items():
        line = line.replace(placeholder, value)
    for command in commands_of(line):
        _check_command(command)


def check_mention(code: str) -> None:
    """Check what a sentence sets in code type: its settings and its command exist; what the command needs may be missing.

    Raises:
        Wrong: they do not.
    """
    for name in re.findall(rf"\b{SETTINGS}\b", code):
        if name not in READERS and not name.startswith(INTERNAL):
            raise Wrong(f"there is no setting {name}")
    program, *arguments = code.split()
    if program.removeprefix(".venv/bin/") != "flowactions" or set("<[…") & set(code):
        return  # another program, or a pattern
    if arguments[:1] == ["--log-level"]:
        arguments = arguments[2:]
    _check_flowactions([each for each in arguments if each != "--help"], whole=False)


def commands_of(line: str) -> Iterator[list[str]]:
    """Give the commands of a line, each as its words, without redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    skip = False
    for word in lexer:
        if set(word) <= set(";&|"):
            yield words
            words = []
        elif set(word) <= set("<>"):
            skip = True
        elif skip:
            skip = False
        else:
            words.append(word)
    yield words


def _check_command(words: list[str]) -> None:
    rest = [*words]
    while rest and (rest[0] == "export" or re.match(r"[A-Z_]+=", rest[0])):
        first = rest.pop(0)
        setting = SETTING.match(first)
        if setting is not None and setting[1] not in READERS:
            raise Wrong(f"there is no setting {setting[1]}")
    if not rest:
        if words and words[0] != "export":
            raise Wrong(f"{words[0]} is not exported: no command that follows has it")
        return
    program, *arguments = rest
    name = program.removeprefix(".venv/bin/")
    if name == "flowactions":
        _check_flowactions(arguments)
    elif name in {"python", "python3"} and arguments[:1] == ["-m"]:
        _check_module(arguments[1], arguments[2:])
    elif name in {"python", "python3"} and arguments[:1] == ["-c"]:
        compile(arguments[1], "<a page>", "exec")
    elif name == "curl":
        _check_request(arguments)
    elif name in {"python", "python3"} or name in OTHERS or name in SCRIPTS:
        return
    else:
        raise Wrong(f"nobody knows the program {name}: see tests.docs.checking")


SCRIPTS: Final = frozenset({"flowactions-demo", "uvicorn", "ruff", "mypy", "lint-imports"})
"""Programs that are installed with this project or its extras."""


def _check_flowactions(arguments: list[str], *, whole: bool = True) -> None:
    group: click.Command = flowactions
    context = click.Context(flowactions, info_name="flowactions")
    while arguments and isinstance(group, click.Group):
        try:
            name, found, arguments = group.resolve_command(context, arguments)
        except click.UsageError as exc:
            raise Wrong(exc.message) from None
        assert found is not None
        group, context = found, click.Context(found, info_name=name, parent=context)
    if isinstance(group, click.Group) or "--help" in arguments:
        return
    try:
        group.make_context(group.name, arguments)
    except (click.MissingParameter, click.BadOptionUsage) as exc:
        if whole:
            raise Wrong(f"flowactions {group.name}: {exc.message}") from None
    except click.UsageError as exc:
        if isinstance(exc, click.BadParameter) and exc.param and isinstance(exc.param.type, click.File):
            return  # a file of the reader's
        raise Wrong(f"flowactions {group.name}: {exc.message}") from None


def _check_request(arguments: list[str]) -> None:
    """Find the method and path of a request to a route of the plugin's among those of the page of routes."""
    method = arguments[arguments.index("-X") + 1] if "-X" in arguments else "GET"
    for argument in arguments:
        found = re.match(r"https?://[^/]+((?:/integrations|/v1|/webhooks)/[^?]*)", argument)
        if found is not None and not any(
            each == method and re.fullmatch(re.sub(r"\\{\w+\\}", "[^/]+", re.escape(path)), found[1])
            for each, path in re.findall(
                r"^\| `(GET|POST|PUT|DELETE) ([^`]+)` \|", ROUTES.read_text(), re.MULTILINE
            )
        ):
            raise Wrong(f"there is no route {method} {found[1]}")


def _check_module(module: str, arguments: list[str]) -> None:
    if module == "flowactions_conformance":
        _check_conformance(*arguments)
    elif importlib.util.find_spec(module) is None:
        raise Wrong(f"there is no module {module}")


def _check_conformance(command: str, *arguments: str) -> None:
    """Find a command of the kit and its options in its help."""
    help_text, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(help_text), redirect_stderr(errors), suppress(SystemExit):
        conformance([command, "--help"])
    unknown = [
        word for word in arguments if word.startswith("--") and word.split("=")[0] not in help_text.getvalue()
    ]
    if unknown or not help_text.getvalue():
        raise Wrong(f"flowactions_conformance {command}: {errors.getvalue() or unknown}")


def _check_http(block: Block) -> None:
    for line in block.text.splitlines():
        if not re.fullmatch(r"[A-Z]+ /\S* HTTP/1\.1|HTTP/1\.1 \d{3} .+|[A-Za-z0-9-]+: \S.*", line):
            raise Wrong(f"{line!r} is no line of a request's head")


def _loads(load: Callable[[str], object]) -> Callable[[Block], None]:
    def check(block: Block) -> None:
        try:
            load(block.text)
        except (ValueError, yaml.YAMLError) as exc:
            raise Wrong(str(exc)) from exc

    return check


BY_LANGUAGE: Final[Mapping[str, Callable[[Block], None]]] = {
    "console": check_console,
    "http": _check_http,
    "json": _loads(json.loads),
    "sh": check_shell,
    "text": lambda _: None,  # output, and drawings
    "toml": _loads(tomllib.loads),
    "yaml": _loads(yaml.safe_load),
}
"""Languages that can be checked without being run. Of others, a test has to run each block."""
