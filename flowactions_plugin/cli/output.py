"""What commands write: results to standard output, everything else to standard error.

Whatever is written passes `escaped` or JSON's ASCII form, so that no stored or received text reaches a terminal as a control
sequence, a line break or a text-direction mark.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

import click

from flowactions_plugin.log_text import escaped

Row = TypeVar("Row")

SAFE_INTEGER: Final = 2**53
"""Programs read larger integers differently (RFC 7493 §2.2), so from here on they are written as text."""


def wants_json() -> bool:
    """Return whether ``--json`` is given: then the result is a document, and is not written as text."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.params.get("as_json"))


def line(text: object = "") -> None:
    """Write one line of a result, unless it is written as JSON."""
    if not wants_json():
        click.echo(escaped(str(text)), color=False)


def status(text: object) -> None:
    """Write one line to standard error: progress, advice, errors."""
    click.echo(escaped(str(text)), err=True, color=False)


def hint(text: object) -> None:
    """Write one line to standard error for who reads the result as text."""
    if not wants_json():
        status(text)


def block(text: str, indent: str = "    ") -> None:
    """Write a text of several lines; each of them is indented, so that none can pass as the command's own."""
    for each in text.replace("\r\n", "\n").split("\n"):
        line(f"{indent}{each}".replace("\t", "    "))


def write_json(document: object, *, indent: int | None = 2) -> None:
    """Write a struct, or what JSON has, in ASCII; ``indent=None`` writes one line, for documents that follow each other."""
    import msgspec  # not for --help

    click.echo(json.dumps(json_ready(msgspec.to_builtins(document)), indent=indent), color=False)


def json_ready(value: Any) -> Any:
    """Return a value in which integers beyond 2^53 are text."""
    if isinstance(value, Mapping):
        return {str(key): json_ready(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_ready(each) for each in value]
    if isinstance(value, int) and not isinstance(value, bool) and not -SAFE_INTEGER < value < SAFE_INTEGER:
        return str(value)
    return value


def table(rows: Iterable[Row], columns: Mapping[str, Callable[[Row], object]]) -> None:
    """Write a table: its lines are cut at the width of a terminal, and are in full where there is none.

    Args:
        rows: what each row is about; without one, nothing is written.
        columns: heading → text of a row's cell, ``None`` for none; with ``>`` at its end, the column is aligned right.
    """
    texts = [[name.removesuffix(">") for name in columns]]
    for row in rows:
        cells = (cell(row) for cell in columns.values())
        texts.append(["" if cell is None else escaped(str(cell)) for cell in cells])
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    most = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for each in texts if len(texts) > 1 else ():
        aligned = (
            text.rjust(width) if name.endswith(">") else text.ljust(width)
            for text, width, name in zip(each, widths, columns, strict=True)
        )
        written = "  ".join(aligned).rstrip()
        line(written if most is None or len(written) <= most else f"{written[: most - 1]}…")


def confirmed(question: str, *, yes: bool) -> bool:
    """Ask on the terminal, unless ``--yes`` is given; returns whether the answer is yes, and says so if it is not.

    Raises:
        click.UsageError: nobody can answer.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise click.UsageError("Nobody can be asked here: add --yes to do it.")
    answer = click.confirm(escaped(question), err=True)
    if not answer:
        status("nothing was done")
    return answer


def summary(exc: BaseException) -> str:
    """Return an error's type and location, without its message, which may hold a secret."""
    import traceback

    frames = [frame for frame in traceback.extract_tb(exc.__traceback__) if not frame.filename.startswith("<")]
    position = (exc.filename, exc.lineno) if isinstance(exc, SyntaxError) else None
    if position is None and frames:
        position = (frames[-1].filename, frames[-1].lineno)
    what = type(exc).__name__
    if isinstance(exc, ModuleNotFoundError):
        what += f" of {exc.name!r}"
    return f"{what} in {position[0]}, line {position[1]}; --log-level debug shows more" if position else what
