r"""The statements of the queue: files of the folder `sql`, one for each database where the two differ, to be read as they are sent.

``{now}`` stands for the time, in Unix milliseconds: the server's own, or the parameter of an embedded database's clock. A few have a
part that is a file of its own, or the condition `UNPAUSED`. To try one in ``psql``, set its parameters with ``\\set``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sqlalchemy import TextClause, text

from flowactions_plugin.storage.dialect import Dialect

FOLDER: Final = Path(__file__).parent / "sql"

UNPAUSED: Final = (
    "NOT EXISTS (SELECT 1 FROM flowactions_pauses AS pause WHERE"
    " pause.destination = {row}.destination AND pause.organization_id IN ('', {row}.organization_id))"
)
"""The condition that nobody has paused the destination of a row."""


def statement(sql: Dialect, name: str) -> TextClause:
    """Return a statement.

    Args:
        sql: of the database.
        name: its file's.
    """
    # SQLite may plan by figures of when the queue was empty.
    by_index = "" if sql.is_server else " INDEXED BY ix_flowactions_outbox_{}"
    return written(
        sql,
        _read(name, sql.name),
        {
            "complete": _read("complete", sql.name),
            "is_held_up": _read("is_held_up", sql.name),
            "wanted": sql.rows_text("sequences", {"sequence": "bigint"}),
            "unpaused": UNPAUSED.format(row="first"),
            "by_behind": by_index.format("behind"),
            "by_sequence": by_index.format("sequence"),
        },
    )


def written(sql: Dialect, words: str, parts: dict[str, str]) -> TextClause:
    """Return a statement that is written as text, with its parts and the time in place of their names in braces.

    Args:
        sql: of the database.
        words: the text.
        parts: by their names; a part may have parts that come after it.
    """
    for name, part in {**parts, "now": sql.now_text}.items():
        words = words.replace(f"{{{name}}}", part)
    made = text(words)
    return made.bindparams(sql.now()) if not sql.is_server and sql.now_text in words else made  # type: ignore[arg-type]


def _read(name: str, dialect: str) -> str:
    """Return the text of a file, without the line at its end."""
    own = FOLDER / f"{name}.{dialect}.sql"
    return (own if own.exists() else FOLDER / f"{name}.sql").read_text(encoding="utf-8").strip()
