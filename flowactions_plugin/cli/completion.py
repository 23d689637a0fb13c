"""``flowactions completion``: completion of commands and options in a shell."""

from __future__ import annotations

import click

from flowactions_plugin.cli.exits import DONE
from flowactions_plugin.cli.frame import PROGRAM, command

VARIABLE = "_FLOWACTIONS_COMPLETE"


@command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Write the script that completes commands and options in a shell.

    For bash: eval "$(flowactions completion bash)", in ~/.bashrc to keep it.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None  # noqa: S101  click has these three
    # The script is made here, and not by click's own class for bash, which first asks the bash on the path for its version.
    made = kind(context.find_root().command, {}, PROGRAM, VARIABLE)
    click.echo(made.source_template % made.source_vars())
    return DONE
