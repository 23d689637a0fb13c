"""What all commands share: how they are declared, run, and how their errors become one line and an exit status."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial, wraps
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Final

import click

from flowactions_plugin.cli.exits import CANNOT_RUN, DONE, FAILED, INTERRUPTED, NEWER_TABLES
from flowactions_plugin.cli.output import status

if TYPE_CHECKING:
    import asyncio

PROGRAM: Final = "flowactions"
SETTINGS: Final = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

COMMON_EXITS: Final = {
    DONE: "done, or nothing to do",
    FAILED: "it failed, for example because the database does not answer or refuses the role; or there is something to do",
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
        document: the struct of `flowactions_plugin.cli.documents` that ``--json`` writes; ``None``: it has no ``--json``.
    """

    def __init__(
        self,
        *args: Any,
        exits: Mapping[int, str] | None = None,
        document: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **{"context_settings": SETTINGS, **kwargs})
        self.exits = {} if exits is None else dict(exits)
        self.document = document


def command(
    name: str,
    *,
    exits: Mapping[int, str] | None = None,
    document: str | None = None,
    read: Mapping[str, Callable[[str | None], Any]] | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> Callable[[Callable[..., Any]], Command]:
    """Declare a command; with a document it has the option ``--json``.

    Args:
        name: of the command.
        exits: see `Command`.
        document: see `Command`.
        read: an option that names a file → what reads it, for a coroutine function; see `_in_loop`.
        loop_factory: makes the event loop that a coroutine function runs in; ``None``: asyncio's.
    """

    def declare(function: Callable[..., Any]) -> Command:
        if iscoroutinefunction(function):
            function = _in_loop(function, read or {}, loop_factory)
        if document is not None:
            function = click.option(
                "--json", "as_json", is_flag=True, help="Write the result as JSON to standard output."
            )(function)
            # Click lists the option that was added last first; the reader wants it last.
            declared = getattr(function, "__click_params__")  # noqa: B009  click's own
            declared.insert(0, declared.pop())
        return click.command(name, cls=Command, exits=exits, document=document)(function)

    return declare


def _in_loop(
    function: Callable[..., Coroutine[Any, Any, int]],
    read: Mapping[str, Callable[[str | None], Any]],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None,
) -> Callable[..., int]:
    """Return a function, with the same options, that runs a coroutine function in an event loop of its own.

    Files are read before the loop runs: in it, Ctrl+C does not end a read of the terminal. They are not read while options
    are parsed, which a shell also does to complete them.
    """

    @wraps(function)
    def in_loop(**options: Any) -> int:
        contents = {name: reader(options[name]) for name, reader in read.items()}
        return run(partial(function, **{**options, **contents}), loop_factory)

    return in_loop


def call(root: click.Command, arguments: Sequence[str] | None) -> int:
    """Run the command line; returns the exit status. Mistakes are one line on standard error."""
    try:
        code = root.main(
            None if arguments is None else list(arguments), prog_name=PROGRAM, standalone_mode=False
        )
    except click.UsageError as exc:
        where = PROGRAM if exc.ctx is None else exc.ctx.command_path
        status(f"{PROGRAM}: {_line(exc.format_message())} See '{where} --help'.")
        return CANNOT_RUN
    except click.ClickException as exc:
        status(f"{PROGRAM}: {_line(exc.format_message())}")
        return CANNOT_RUN
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    return int(code or DONE)


def run(
    work: Callable[[], Coroutine[Any, Any, int]],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None,
) -> int:
    """Run a command's work in an event loop; returns the exit status.

    Every error that an operator can cause becomes one line that says what to do. No message of an unexpected error is
    shown, for it may hold a secret; ``--log-level debug`` logs it.
    """
    import asyncio  # not for --help
    import logging

    from flowactions_hookspecs import FlowActionsError
    from flowactions_plugin.cli.failures import advice, exit_status, summary

    level = click.get_current_context().find_root().params.get("log_level", "info")
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("alembic").setLevel(logging.WARNING)  # it logs every check of the tables
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(work())
    except (BrokenPipeError, click.ClickException, click.Abort):
        raise  # click ends with 1, and without a word, when whoever reads the output has enough
    except FlowActionsError as exc:
        message, code = advice(exc), exit_status(exc)
    except Exception as exc:  # printed in the same form as all others
        message, code = f"failed unexpectedly: {summary(exc)}", FAILED
        log = logging.getLogger("flowactions.cli")
        log.debug("failed unexpectedly", exc_info=True, extra={"event": "command.failed"})
    status(f"{PROGRAM}: {_line(message)}")
    return code


def _line(message: str) -> str:
    return " ".join(message.split())
