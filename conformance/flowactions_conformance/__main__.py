"""``python -m flowactions_conformance``: proves a host, and has what a host is developed against."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from flowactions_conformance.commands.init import CannotWrite, engines, init, init_engine

STUCK_SECONDS: Final = 5.0
"""For how long the threads that a host has left behind are waited for."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m flowactions_conformance", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="check a host")
    writing = commands.add_parser(
        "init", help="write the file that tells the kit how to make and use your host"
    )
    plugin = commands.add_parser("plugin", help="check the node types of a plugin")
    provider = commands.add_parser("chat-provider", help="serve a fake chat provider")
    receiver = commands.add_parser("receiver", help="serve a webhook receiver")
    environment = commands.add_parser(
        "serve-env", help="serve what run --url needs, and print the environment for the host that you start"
    )
    writing.add_argument("path", nargs="?", type=Path, default=Path(), help="file or folder (default: here)")
    writing.add_argument(
        "--engine",
        choices=engines(),
        help="write a folder: a host whose flows it runs, its driver and its tests",
    )
    plugin.add_argument("name", help="of its entry point, or of its module, if it is not installed")
    plugin.add_argument(
        "--setting",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of the host; {receiver}: the kit's receiver",
    )
    plugin.add_argument(
        "--config",
        action="append",
        default=[],
        metavar="TYPE=JSON",
        help="a valid config, or @FILE; {receiver} as above",
    )
    for each in (provider, receiver):
        each.add_argument("--port", type=int, default=0, help="default: a free one")
    provider.add_argument("--events-url", metavar="URL", help="where events go: …/integrations/chat/events")
    receiver.add_argument("--secret", help="what signatures are verified with (default: a new one)")
    _describe_run(run)
    _describe_serve_env(environment)
    try:
        return _run(parser.parse_args(arguments))
    except ModuleNotFoundError as exc:
        return _failed(str(exc))
    except BrokenPipeError:
        # Who reads the report has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as exc:  # noqa: BLE001  a defect of the kit is said in one line
        place = traceback.extract_tb(exc.__traceback__)[-1]
        return _failed(
            f"the kit failed, which is a defect of the kit: {type(exc).__name__}: {exc} "
            f"({place.filename}:{place.lineno})"
        )


def _describe_run(parser: argparse.ArgumentParser) -> None:
    """Describe the command, without importing what it needs: init works where no server is installed."""
    parser.add_argument("host", nargs="?", help="the factory, as package.module:make_host")
    parser.add_argument(
        "--url", metavar="URL", help="where a host is reached that you have started with what serve-env prints"
    )
    parser.add_argument(
        "--driver",
        metavar="DRIVER",
        help="with --url: what makes the host's driver, as package.module:make_driver",
    )
    parser.add_argument(
        "--env",
        type=Path,
        metavar="FILE",
        help="with --url: what serve-env --file has written (default: the environment)",
    )
    parser.add_argument(
        "--check",
        action="append",
        default=[],
        metavar="ID|GROUP|PROFILE",
        help="only these, for example EAGER-1, EAGER or pacing; may be given several times",
    )
    parser.add_argument("--child", action="store_true", help="run every host as a child process")
    parser.add_argument(
        "--database",
        metavar="URL",
        help="a PostgreSQL whose user may create databases (postgresql://…); without it, SQLite",
    )
    parser.add_argument(
        "--report", type=Path, metavar="DIR", help="write report.json with its schema, and report.html"
    )
    parser.add_argument(
        "--baseline", type=Path, metavar="FILE", help="TOML or JSON: check id = why its failure is accepted"
    )
    parser.add_argument(
        "--seed",
        type=int,
        metavar="NUMBER",
        help="draw the same values as the run whose report names this seed",
    )
    parser.add_argument(
        "--time-scale", type=float, default=1.0, metavar="FACTOR", help="make all limits longer or shorter"
    )
    parser.add_argument("--strict", action="store_true", help="a should counts as a must")
    parser.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="end the run then, with a report of what has ended"
    )
    parser.add_argument("--list", action="store_true", help="list the checks, and run none")


def _describe_serve_env(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        metavar="URL",
        default="http://127.0.0.1:8000",
        help="where your host will be reached, with the path if it is below one (default: http://127.0.0.1:8000)",
    )
    parser.add_argument("--inbound", action="store_true", help="the host handles events of the auth provider")
    parser.add_argument(
        "--database",
        metavar="URL",
        help="a PostgreSQL whose user may create databases (postgresql://…); without it, SQLite",
    )
    parser.add_argument(
        "--file",
        type=Path,
        metavar="FILE",
        help="write the environment there, readable by you only, and do not print it",
    )


def _run(options: argparse.Namespace) -> int:
    if options.command == "run":
        from flowactions_conformance.commands.run import run  # noqa: PLC0415

        return run(options)
    if options.command == "init":
        try:
            if options.engine:
                init_engine(options.engine, options.path)
            else:
                init(options.path)
        except CannotWrite as exc:
            return _failed(str(exc))
        return 0
    if options.command == "plugin":
        from flowactions_conformance.commands.plugin import plugin  # noqa: PLC0415

        return plugin(options)
    if options.command == "serve-env":
        from flowactions_conformance.commands.serve_env import serve_env  # noqa: PLC0415

        return serve_env(options)
    return _serve_fake(options)


def _serve_fake(options: argparse.Namespace) -> int:
    from flowactions_conformance.commands import fakes  # noqa: PLC0415

    try:
        if options.command == "chat-provider":
            fakes.serve_chat_provider(options.port, options.events_url)
        else:
            fakes.serve_receiver(options.port, options.secret)
    except fakes.PortUnavailable as exc:
        return _failed(str(exc))
    return 0


def _failed(message: str) -> int:
    sys.stderr.write(f"flowactions_conformance: {message}\n")
    return 2


def _leave(status: int) -> None:
    """End the process, also when a host has left threads that never end."""

    def end() -> None:
        time.sleep(STUCK_SECONDS)
        os._exit(status)

    sys.stdout.flush()
    threading.Thread(target=end, daemon=True).start()
    sys.exit(status)


if __name__ == "__main__":
    _leave(main())
