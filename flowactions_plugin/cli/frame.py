"""What all commands share: how they are declared and run, their exit statuses, and how their errors become one line."""

from __future__ import annotations

import importlib
import inspect
import signal
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from flowactions_plugin.cli.output import status, summary, wants_json, write_json

if TYPE_CHECKING:
    from flowactions_hookspecs import FlowActionsError

PROGRAM: Final = "flowactions"
SETTINGS: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

DONE: Final = 0
FAILED: Final = 1
CANNOT_RUN: Final = 2
NEWER_TABLES: Final = 3
STALLED: Final = 4
FAILING: Final = 5
INTERRUPTED: Final = 128 + signal.SIGINT

COMMON_EXITS: Final = {
    DONE: "done, or nothing to do",
    FAILED: "it failed, for example because the database does not answer or refuses the role; or something is to be done",
    CANNOT_RUN: "the command cannot run like this: a wrong option, a wrong setting, no such host, no such database",
    INTERRUPTED: "interrupted (Ctrl+C)",
}
"""Exit statuses that every command may have."""

TABLES_EXITS: Final = {NEWER_TABLES: "the tables are of a later release than this one"}
"""Exit statuses of commands that work on the tables."""


class Command(click.Command):
    """A command with what the reference page says of it.

    Args:
        exits: exit statuses beside `COMMON_EXITS`, or with a meaning of their own, and what they mean.
        document: the struct that ``--json`` writes, as ``module:Name`` within the plugin; ``None``: it has no ``--json``.
    """

    def __init__(self, *args: Any, exits: Mapping[int, str], document: str | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.exits = exits
        self.document = document


def host_option(*, required: bool = False) -> click.Option:
    """Return the option ``--host``."""
    text = "Where the host is made: 'package.module:name' of a Host, or of a function that returns one."
    if not required:
        text += " Without it, the settings of the environment are used."
    return click.Option(["--host"], required=required, metavar="MODULE:NAME", help=text)


def command(
    name: str,
    work: str | Callable[..., Any],
    text: str,
    *params: click.Parameter,
    exits: Mapping[int, str] | None = None,
    document: str | None = None,
    opens: bool = False,
    **more: Any,
) -> Command:
    """Declare a command.

    Args:
        name: of the command.
        work: the function that carries it out, as ``module:name`` within this package, which is imported when the command
            runs. It gets the options, and returns an exit status, or what ``--json`` writes and an exit status.
        text: its help.
        params: its arguments and options.
        exits: see `Command`.
        document: see `Command`.
        opens: whether the command works on deliveries: it gets a `CommandContext` whose database is open, and has ``--host``.
        more: further arguments of the function.
    """

    def run(**options: Any) -> int:
        options.pop("as_json", None)
        return _run(work, {**options, **more}, opens=opens)

    found = [host_option(), *params] if opens else [*params]
    if document is not None:
        words = "Write the result as JSON to standard output."
        found.append(click.Option(["--json", "as_json"], is_flag=True, help=words))
    meant = {**(TABLES_EXITS if opens else {}), **(exits or {})}
    return Command(
        name,
        params=found,
        callback=run,
        help=inspect.cleandoc(text),
        context_settings=SETTINGS,
        exits=meant,
        document=document,
    )


def _run(work: str | Callable[..., Any], options: dict[str, Any], *, opens: bool) -> int:
    """Run a command's work, in an event loop if it needs one; return the exit status.

    No message of an unexpected error is shown: a secret may be in it.
    """
    import asyncio  # not for --help
    import logging

    from flowactions_hookspecs import FlowActionsError

    level = click.get_current_context().find_root().params.get("log_level", "info")
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it logs every check of the tables
    try:
        function = work if callable(work) else _imported(work)
        found = _opened(function, **options) if opens else function(**options)
        if isinstance(found, Coroutine):
            found = asyncio.run(found)
        document, code = found if isinstance(found, tuple) else (None, found)
        if document is not None and wants_json():
            write_json(document)
        return int(code)
    except (BrokenPipeError, click.ClickException, click.Abort):
        raise  # click ends with 1, and without a word, when whoever reads the output has enough
    except FlowActionsError as exc:
        message, code = _advice(exc)
    except Exception as exc:  # printed in the same form as all others
        message, code = f"failed unexpectedly: {summary(exc)}", FAILED
        log = logging.getLogger("flowactions.cli")
        log.debug("failed unexpectedly", exc_info=True, extra={"event": "command.failed"})
    _say(message)
    return code


def _imported(work: str) -> Callable[..., Any]:
    module, _, name = work.partition(":")
    found: Callable[..., Any] = getattr(importlib.import_module(f"{__package__}.{module}"), name)
    return found


async def _opened(work: Callable[..., Any], host: str | None, **options: Any) -> Any:
    from flowactions_plugin.cli.context import opened  # not for --help

    async with opened(host) as context:
        return await work(context, **options)


def call(root: click.Command, arguments: Sequence[str] | None) -> int:
    """Run the command line; returns the exit status. Mistakes are one line on standard error."""
    try:
        code = root.main(
            None if arguments is None else list(arguments), prog_name=PROGRAM, standalone_mode=False
        )
    except click.ClickException as exc:
        said = exc.format_message()
        if isinstance(exc, click.UsageError):
            path = PROGRAM if exc.ctx is None else exc.ctx.command_path
            said = f"{said.removesuffix('.')}. See '{path} --help'."
        _say(said)
        return CANNOT_RUN
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    return int(code or DONE)


def _say(message: str) -> None:
    status(f"{PROGRAM}: {' '.join(message.split())}")


def _advice(exc: FlowActionsError) -> tuple[str, int]:
    """Return what an error says, and its exit status; the plugin's own errors say what to do."""
    from flowactions_hookspecs import HostInvalid, SettingsInvalid
    from flowactions_plugin import errors

    said = str(exc) or type(exc).__name__
    if isinstance(exc, errors.SchemaNewer):
        return said, NEWER_TABLES
    if isinstance(exc, errors.FilterInvalid):
        return f"the filter: {said}", CANNOT_RUN
    wrong = (errors.ActionInvalid, errors.CannotRun, HostInvalid, SettingsInvalid)
    return said, CANNOT_RUN if isinstance(exc, wrong) else FAILED
