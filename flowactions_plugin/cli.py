"""``flowactions``: what an operator runs beside the host (``worker``, ``migrate``, ``reseal``).

Parsing needs the standard library only. What a command needs is imported when it is known which one it is, so that
``--help`` and mistakes are answered at once.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

HOST_HELP = (
    "where the host is made: 'package.module:name' of a Host, of a function or coroutine function that gives one, "
    "or of one that gives an async context manager that does"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: without the program's name; those of the process when ``None``.

    Returns:
        The exit status: 0 done, 1 failed or (``--check``) something to do, 2 cannot be run like this, 3 the tables are
        of a later release.
    """
    options = _parser().parse_args(arguments)
    from flowactions_plugin import commands  # noqa: PLC0415  imports the database libraries

    return commands.run(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="flowactions", description="Operate the flow-actions plugin.")
    parser.add_argument(
        "--log-level", default="info", choices=["debug", "info", "warning", "error"], help="default: info"
    )
    commands = parser.add_subparsers(required=True, metavar="command")

    worker = commands.add_parser(
        "worker",
        help="deliver what is in the outbox, in a process of its own",
        description="Deliver what is in the outbox until SIGTERM or SIGINT: then claim no more, finish what is being "
        "sent, and give the rest back. Any number may run against one PostgreSQL.",
    )
    worker.add_argument("--host", required=True, metavar="MODULE:NAME", help=HOST_HELP)
    worker.set_defaults(command="worker")

    migrate = commands.add_parser(
        "migrate",
        help="bring the tables to this release's revision",
        description="Bring the tables of FLOWACTIONS_DATABASE_URL, or those of a host, to this release's revision.",
    )
    migrate.add_argument("--host", metavar="MODULE:NAME", help=HOST_HELP)
    migrate.add_argument(
        "--check",
        action="store_true",
        help="change nothing; exit 1 when there is something to do, 3 when the tables are newer",
    )
    migrate.set_defaults(command="migrate")

    resealing = commands.add_parser(
        "reseal",
        help="put every stored token under the newest encryption key",
        description="After a new key was put in front of FLOWACTIONS_ENCRYPTION_KEYS: seal every stored token under it, "
        "so that the older keys can be taken away. Hosts go on working meanwhile.",
    )
    resealing.add_argument("--host", metavar="MODULE:NAME", help=HOST_HELP)
    resealing.add_argument(
        "--check", action="store_true", help="change nothing; exit 1 when there is something to do"
    )
    resealing.set_defaults(command="reseal")
    return parser


if __name__ == "__main__":
    sys.exit(main())
