"""``python -m flowactions_conformance``: proves a host, and has what a host is developed against."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from flowactions_conformance.commands import Wrong
from flowactions_conformance.commands.init import engines

STUCK_SECONDS: Final = 5.0
"""For how long the threads that a host has left behind are waited for."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return its exit status."""
    options = _parser().parse_args(arguments)
    try:
        # Imported only now: init works where no server is installed.
        module = import_module(f"flowactions_conformance.commands.{options.module}")
        status: int = getattr(module, options.function)(options)
    except (Wrong, ModuleNotFoundError) as exc:
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
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m flowactions_conformance", description=__doc__)
    commands = parser.add_subparsers(required=True)

    def command(name: str, text: str, module: str, function: str) -> Any:
        made = commands.add_parser(name, help=text)
        made.set_defaults(module=module, function=function)
        return made.add_argument

    server = "a PostgreSQL whose user may create databases (postgresql://…); without it, SQLite"

    option = command("run", "check a host", "run", "run")
    option("host", nargs="?", help="the factory, as package.module:make_host")
    option(
        "--env",
        type=Path,
        metavar="FILE",
        help="check a host that you have started: what serve-env has written",
    )
    option("--driver", help="with --env: what makes the host's driver, as package.module:make_driver")
    text = "only these, for example EAGER-1, EAGER or pacing; may be given several times"
    option("--check", action="append", default=[], metavar="ID|GROUP|PROFILE", help=text)
    option("--database", metavar="URL", help=server)
    option("--report", type=Path, metavar="DIR", help="write report.json")
    text = "draw the same values as the run whose report names this seed"
    option("--seed", type=int, metavar="NUMBER", help=text)
    option("--time-scale", type=float, default=1.0, metavar="FACTOR", help="make all limits longer or shorter")
    option("--list", action="store_true", help="list the checks, and run none")

    option = command("init", "write the file that tells the kit how to make and use your host", "init", "init")
    option("path", nargs="?", type=Path, default=Path(), help="file or folder (default: here)")
    text = "write a folder: a host whose flows it runs, its driver and its tests"
    option("--engine", choices=engines(), help=text)

    option = command("plugin", "check the node types of a plugin", "plugin", "plugin")
    option("name", help="of its entry point, or of its module, if it is not installed")
    given: dict[str, Any] = {"action": "append", "default": []}
    option("--setting", **given, metavar="NAME=VALUE", help="of the host; {receiver}: the kit's receiver")
    option("--config", **given, metavar="TYPE=JSON", help="a valid config, or @FILE; {receiver} as above")

    option = command("chat-provider", "serve a fake chat provider", "fakes", "serve_chat_provider")
    option("--port", type=int, default=0, help="default: a free one")
    option("--events-url", metavar="URL", help="where events go: …/integrations/chat/events")

    option = command("receiver", "serve a webhook receiver", "fakes", "serve_receiver")
    option("--port", type=int, default=0, help="default: a free one")
    option("--secret", help="what signatures are verified with (default: a new one)")

    option = command(
        "serve-env",
        "serve what run --env needs, and write the environment for the host that you start",
        "serve_env",
        "serve_env",
    )
    url = "http://127.0.0.1:8000"
    text = f"where your host will be reached, with the path if it is below one (default: {url})"
    option("--url", metavar="URL", default=url, help=text)
    text = "where to write the environment, readable by you only (default: served.env)"
    option("--file", type=Path, default=Path("served.env"), metavar="FILE", help=text)
    option("--inbound", action="store_true", help="the host handles events of the auth provider")
    option("--database", metavar="URL", help=server)
    return parser


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
