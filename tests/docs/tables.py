"""The page of the database's tables, made from their definition: ``python -m tests.docs.tables --write``.

What a column means is the comment above it in `storage/schema.py`; of columns
whose name says it to whoever reads the code, it is in `tables.toml` beside this file.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Column, Table

from flowactions_plugin.storage import schema
from tests.docs import generated

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "tables.md"
COMMAND: Final = "python -m tests.docs.tables --write"
MEANINGS: Final = tomllib.loads((Path(__file__).parent / "tables.toml").read_text())
ANY: Final = "any"


def comments() -> dict[tuple[str, str], str]:
    """Read the comments above columns: table and column → comment."""
    found: dict[tuple[str, str], str] = {}
    table, pending = "", list[str]()
    for line in map(str.strip, Path(schema.__file__).read_text().splitlines()):
        column = re.match(r'Column\("(\w+)"', line)
        name = re.fullmatch(r'"(flowactions_\w+)",', line)
        if line.startswith("#"):
            pending.append(line.removeprefix("#").strip())
            continue
        if name is not None:
            table = name[1]
        if column is not None and pending:
            found[table, column[1]] = " ".join(pending)
        pending = []
    return found


def meaning(table: Table, column: Column[Any], commented: dict[tuple[str, str], str]) -> str:
    """Give what a column means.

    Raises:
        KeyError: nothing says it.
    """
    own = MEANINGS.get(table.name, {})
    text: str | None = commented.get((table.name, column.name)) or own.get(column.name)
    text = text or MEANINGS[ANY].get(column.name)
    if text is None:
        raise KeyError(f"{table.name}.{column.name}: write a comment above it, or a line in tables.toml")
    begun = text[0] if text[1].isupper() else text[0].lower()
    return f"{begun}{text[1:]}".replace("``", "`").replace("|", "\\|").rstrip(".")


def render() -> str:
    """Makes the page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield "# Tables"
    yield ""
    yield (
        "What the plugin keeps in the database, its own or the host's. Times are Unix milliseconds; ids are text. The tables are the\n"
        "same on PostgreSQL and SQLite. Read them if you like; write to them only by the [commands](commands.md), the\n"
        "[routes](http.md) and the [pages](http.md#operator-pages). If another program writes a row, perhaps no worker can read it.\n"
        "Releases change tables by [revisions](../how-to/production.md#7-backup-and-upgrade), and the tables are not a part of the contract.\n"
        "Types and indexes are those that the database shows, for example `\\d flowactions_outbox` in psql. This page is generated:\n"
        f"`{COMMAND}`."
    )
    commented = comments()
    yield from ("", "| table | holds |", "|---|---|")
    tables = list(schema.metadata.sorted_tables)
    tables.sort(key=lambda table: list(schema.metadata.tables).index(table.name))
    for table in tables:
        yield f"| [`{table.name}`](#{table.name}) | {MEANINGS[table.name]['table']} |"
    for table in tables:
        yield from ("", f"## `{table.name}`", "", "| column | meaning |", "|---|---|")
        for column in table.columns:
            yield f"| `{column.name}` | {meaning(table, column, commented)} |"


if __name__ == "__main__":
    sys.exit(generated.run(COMMAND, __doc__, PAGE, render))
