"""The tree of commands: their help, arguments and options. What carries them out is imported when they run."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import cleandoc
from typing import Final

import click

from flowactions_plugin.cli.frame import (
    DONE,
    FAILED,
    FAILING,
    NEWER_TABLES,
    SETTINGS,
    STALLED,
    TABLES_EXITS,
    Command,
    command,
    host_option,
)
from flowactions_plugin.cli.options import (
    LIMIT,
    REASON,
    WHERE,
    WORDS,
    YES,
    option,
    organization_option,
)

RATE: Final = option(
    "--rate", "At most this many deliveries a second.", type=click.FloatRange(min=0, min_open=True), metavar="N"
)
CURSOR: Final = option(
    "--cursor",
    "Continue after a page; the last line of each page names its cursor.",
    type=WORDS,
    metavar="TEXT",
)
RESET: Final = option(
    "--reset reset_attempts",
    "Give each delivery all its attempts again; without it, one more attempt.",
    is_flag=True,
)


def group(name: str, commands: Sequence[click.Command], text: str, *params: click.Option) -> click.Group:
    """Declare a group of commands; without one of them, a mistake is said in one line."""
    return click.Group(
        name,
        commands=commands,
        params=[*params],
        help=cleandoc(text),
        context_settings=SETTINGS,
        no_args_is_help=False,
    )


def changing(kind: str, text: str, *own: click.Option) -> Command:
    """Declare a command that changes deliveries: those of some ids, or of a filter."""
    return command(
        kind,
        "changing:change",
        text,
        click.Argument(["ids"], nargs=-1, metavar="[ID]..."),
        *own,
        WHERE,
        REASON,
        YES,
        exits={
            DONE: "done; or ordered, where no worker is alive; or nothing meets the filter",
            FAILED: "it failed; the action was stopped; or a single delivery was not in a state for it",
        },
        opens=True,
        kind=kind,
    )


OUTBOX: Final = (
    command(
        "list",
        "outbox:list_deliveries",
        "List deliveries, newest first.",
        WHERE,
        LIMIT,
        CURSOR,
        document="insights.results:Page",
        opens=True,
    ),
    command(
        "show",
        "outbox:show",
        "Show one delivery: why it is not sent yet, its request, its attempts, and the changes that people made to it.",
        click.Argument(["delivery_id"], metavar="ID"),
        document="insights.results:Found",
        exits={FAILED: "no delivery has this id; or it failed"},
        opens=True,
    ),
    changing(
        "retry",
        """Retry dead deliveries: those with these ids, those that match a filter, or 'all'.

        Workers retry those of a filter, so it continues if this command or a worker is killed. To see the progress, use
        'flowactions status'. To stop it, use 'outbox stop'.
        """,
        RESET,
        RATE,
    ),
    changing(
        "resend",
        """Send delivered webhooks again: those with these ids, or those that match a filter with since.

        Each is sent as a new delivery with the same event id, headers and body, signed with the present secret. Receivers
        that dedupe by event id ignore events that they have already processed. Filters need since, event or key.
        """,
        RATE,
    ),
    changing(
        "cancel",
        """Cancel deliveries that wait for an attempt, at once: those with these ids, those that match a filter, or 'all'.

        They are then dead; 'outbox retry --reset' sends them after all. A delivery that is being sent is delivered if its
        receiver answers so, and is not tried again otherwise.
        """,
    ),
    changing(
        "delete",
        """Delete dead deliveries with their attempts: those with these ids, those that match a filter, or 'all'.

        They cannot be restored.
        """,
    ),
    command(
        "stop",
        "changing:stop",
        """Stop a bulk action. 'flowactions status' lists them.

        Deliveries that it has already changed stay changed.
        """,
        click.Argument(["action_id"], type=WORDS, metavar="ID"),
        exits={FAILED: "no bulk action has this id, or it is done; or it failed"},
        opens=True,
    ),
)

DESTINATIONS: Final = (
    command(
        "list",
        "destinations:list_destinations",
        "List destinations with the results of the last hour, those whose last attempt has failed first, and pauses.",
        organization_option(),
        CURSOR,
        document="cli.destinations:Destinations",
        opens=True,
    ),
    *(
        command(
            name,
            "destinations:change",
            text,
            click.Argument(["destination"], type=WORDS),
            organization_option("For this organization only; without it, for all."),
            REASON,
            opens=True,
            what=name,
        )
        for name, text in (
            (
                "pause",
                """Pause a destination: its deliveries wait, use up no attempt and do not delay other deliveries.

                DESTINATION is scheme, host and port, or a URL. Attempts in flight are finished.
                """,
            ),
            (
                "resume",
                "Resume a destination: deliveries that have waited are due at once, in their order.",
            ),
        )
    ),
)

COMMANDS: Final = (
    command(
        "worker",
        "worker:worker",
        """Deliver the rows of the outbox, in a process of its own.

        It runs until SIGTERM, SIGINT or SIGHUP; if nohup has started it, it ignores SIGHUP. At the end it stops claiming,
        finishes the attempts in flight, and gives its other rows back. Any number of workers may run with one PostgreSQL.
        """,
        host_option(required=True),
        exits={DONE: "after a graceful stop"},
    ),
    command(
        "migrate",
        "maintenance:migrate",
        """Create the tables, or upgrade them to this release's revision.

        The tables are those of FLOWACTIONS_DATABASE_URL, or with --host those of the host, its shared engine included.
        """,
        host_option(),
        option(
            "--check",
            "Change nothing; exit 1 if the tables must be changed, 3 if they are newer than this release.",
            is_flag=True,
        ),
        exits={
            DONE: "the tables are of this release",
            FAILED: "it failed; or, with --check, something is to be done",
            NEWER_TABLES: "the tables are of a later release than this one, and nothing was changed",
        },
    ),
    command(
        "reseal",
        "maintenance:reseal",
        """Encrypt every stored token with the newest encryption key.

        Run it after you have put a new key before the others in FLOWACTIONS_ENCRYPTION_KEYS. Then you can remove the older
        keys. Hosts continue to work meanwhile.
        """,
        exits={
            DONE: "every token is sealed with the newest key",
            FAILED: "no key opens some token, and the message names its organization; or it failed",
        },
        opens=True,
    ),
    command(
        "doctor",
        "diagnosis:doctor",
        """Check settings, database, tables, clocks, keys, chat tokens, egress, its proxy and deliveries.

        To check that the database can be written, it writes a row and rolls it back. It changes nothing else. The exit
        status is that of the verdict, so that a monitor can run it.
        """,
        host_option(),
        option(
            "--url urls",
            "Say what would happen to a webhook to this URL, and why. May be repeated.",
            multiple=True,
        ),
        option(
            "--chat/--no-chat with_chat",
            "Ask the chat provider about stored tokens, at most 20 of them.",
            default=True,
        ),
        document="cli.diagnosis:Diagnosis",
        exits={
            DONE: "no check failed: deliveries work, or nothing is due",
            FAILED: "a check failed",
            STALLED: "deliveries are stalled: rows are due, and nobody claims them",
            FAILING: "deliveries are failing: most attempts of the last minutes have failed, and not of one organization alone",
        },
    ),
    command(
        "status",
        "outbox:show_status",
        """Show how deliveries stand: what is due, rates, workers, findings, bulk actions, and what fails most.

        Workers are the processes that deliver: 'flowactions worker', and hosts that deliver themselves.
        """,
        organization_option(),
        document="insights.results:Overview",
        exits={FAILED: "no worker is alive; or it failed"},
        opens=True,
    ),
    group(
        "outbox",
        OUTBOX,
        """List, show, retry, resend, cancel and delete deliveries.

        Without --organization, the deliveries of all organizations.
        """,
    ),
    group("destinations", DESTINATIONS, "List destinations, pause and resume them."),
    command(
        "purge",
        "maintenance:purge",
        """Delete all rows of an organization, and revoke its chat token.

        Deliveries that wait are deleted too, and are not sent. The command counts the rows first. One line of the audit
        stays: it has the person and the numbers. If the command was interrupted, run it again.
        """,
        click.Argument(["organization"], type=WORDS),
        YES,
        exits={FAILED: "it failed, or nobody said yes; what was removed before stays removed"},
        opens=True,
    ),
    command(
        "send-test",
        "trial:send_test",
        """Send a small test event to a URL, and time each phase of it.

        This process sends it, with the egress rules, the proxy and the certificates of the settings. If the environment
        has a WEBHOOK_SECRET, the request is signed. The command writes nothing to a database, and does not retry.
        """,
        click.Argument(["url"]),
        host_option(),
        exits={
            DONE: "the receiver answered with 2xx",
            FAILED: "it did not, or nothing could be sent; the line says why",
        },
    ),
    command(
        "listen",
        "receiver:listen",
        """Receive webhooks here, verify their signatures and print them.

        The signing secret is the environment's WEBHOOK_SECRET. Without it, the command makes one and writes it to standard
        error: configure it in the webhook. With FLOWACTIONS_ENVIRONMENT=development, webhooks may go to a receiver on this
        machine. The headers and the body of a request whose signature is not right are printed, too; with --json, all are.
        """,
        option(
            "--port",
            "The port, 0: any that is free; or an address and a port, '0.0.0.0:8420'.",
            default="127.0.0.1:8420",
            metavar="[ADDRESS:]PORT",
        ),
        option(
            "--status answer",
            "The status of every answer; 500 or 429, for example, to watch retries.",
            type=click.IntRange(200, 599),
            default=200,
        ),
        option(
            "--forward-to",
            "Send each request on to this URL as it came, and answer with the status that it gives.",
            metavar="URL",
        ),
        document="cli.receiver:Received",
        exits={
            DONE: "stopped by Ctrl+C or SIGTERM",
            2: "the address cannot be used, or an option is wrong",
        },
    ),
    command(
        "mcp",
        "agents:serve",
        """Serve tools for agents, by the Model Context Protocol over standard input and output.

        An agent's client starts it. It needs the extra 'agents'. The tools read deliveries and destinations, as a member sees them
        who may only read. They do what other commands do, and the audit names the agent.
        """,
        host_option(),
        organization_option("Only for this organization; without it, for all."),
        option("--allow-write", "Add the tools that retry, cancel, pause and resume.", is_flag=True),
        option("--bodies", "Show bodies, and what receivers answered: other people wrote them.", is_flag=True),
        exits={DONE: "the client has closed standard input", **TABLES_EXITS},
    ),
    command(
        "keygen",
        "maintenance:keygen",
        """Make an encryption key, for FLOWACTIONS_ENCRYPTION_KEYS.

        The key is 32 random bytes in base64. It is written to standard output and not stored. To rotate keys, put it before
        the older keys and run 'flowactions reseal'.
        """,
        option("--signing", "Make a signing secret of a webhook instead of an encryption key.", is_flag=True),
    ),
)

flowactions: Final = group(
    "flowactions",
    COMMANDS,
    "Operate the flow-actions plugin.",
    option(
        "--log-level",
        "What is logged to standard error.",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
    ),
)
