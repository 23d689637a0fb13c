"""``flowactions``: the commands of operators.

A module here declares one command, or a group of them, with click alone. What a command needs is imported when it runs, so
that ``--help``, completion and mistakes are answered at once.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: without the program's name; those of the process when ``None``.

    Returns:
        The exit status: 0 done; 1 failed, or there is something to do; 2 cannot be run like this; further ones are in the
        help of each command.
    """
    from flowactions_plugin.cli.commands import flowactions  # imports click
    from flowactions_plugin.cli.frame import call

    return call(flowactions, arguments)
