"""SQL that differs between SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Self

import msgspec
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    FromClause,
    Table,
    Text,
    bindparam,
    cast,
    column,
    extract,
    func,
    literal,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite

from flowactions_plugin.clock import Clock


def inline(value: Any) -> ColumnElement[Any]:
    """Write a value into the statement itself: PostgreSQL's plan for a statement depends on it."""
    return literal(value, literal_execute=True)


class Dialect:
    """Builds SQL for one of the two databases.

    Args:
        dialect: ``sqlite`` or ``postgresql``.
        clock: the time on SQLite.
    """

    def __init__(self, dialect: str, clock: Clock) -> None:
        self.dialect = dialect
        self.clock = clock
        self._built: dict[tuple[str, Callable[..., Any]], Any] = {}
        self._now = bindparam("now", callable_=lambda: int(self.clock() * 1000), type_=BigInteger)

    def now(self) -> ColumnElement[int]:
        """Return the current time, Unix milliseconds, as an SQL expression: PostgreSQL's own, or the given clock's."""
        if self.dialect == "postgresql":
            # Stable within a statement, so that an index on a time can be used.
            return cast(func.floor(extract("epoch", func.statement_timestamp()) * 1000), BigInteger)
        return self._now

    def built(self, build: Callable[[Self], Any]) -> Any:
        """Give what a function has built, for example a statement: once for each dialect, as that costs more than to run it.

        Which dialect it is, is known when the database is opened, and may be another at the next opening.
        """
        name = (self.dialect, build)
        if name not in self._built:
            self._built[name] = build(self)
        return self._built[name]

    def insert_unless_there(self, table: Table) -> postgresql.Insert | sqlite.Insert:
        """Return an INSERT that does nothing for a row whose unique key exists."""
        if self.dialect == "postgresql":
            return postgresql.insert(table).on_conflict_do_nothing()
        return sqlite.insert(table).on_conflict_do_nothing()

    def insert_or_replace(
        self,
        table: Table,
        values: Mapping[str, Any],
        where: ColumnElement[bool] | None = None,
        keep: Collection[str] = (),
    ) -> postgresql.Insert | sqlite.Insert:
        """Return an INSERT that replaces the row with the same primary key.

        Args:
            table: the table.
            values: the values of all columns.
            where: a condition on the existing row; when it is false, the row stays, and none is returned.
            keep: columns of the existing row that are not replaced.
        """
        key = [column.name for column in table.primary_key]
        rest = {name: value for name, value in values.items() if name not in key and name not in keep}
        kind = postgresql.insert if self.dialect == "postgresql" else sqlite.insert
        return kind(table).values(values).on_conflict_do_update(index_elements=key, set_=rest, where=where)

    def values_table(self, name: str, **columns: type[Any]) -> FromClause:
        """Return a table of the rows in one parameter, so that one statement serves any number of rows.

        Args:
            name: the name of the table, and of the parameter, whose value `json_rows` returns.
            columns: each column's SQLAlchemy type.
        """
        given = bindparam(name, type_=Text)
        if self.dialect == "postgresql":
            made = func.json_to_recordset(cast(given, postgresql.JSON)).table_valued(
                *(column(key, kind) for key, kind in columns.items())
            )
            return made.render_derived(name=name, with_types=True)
        each = func.json_each(given).table_valued("value")
        values = (
            cast(func.json_extract(each.c.value, f"$.{key}"), kind).label(key) for key, kind in columns.items()
        )
        return select(*values).subquery(name)

    @staticmethod
    def json_rows(rows: Sequence[Mapping[str, Any]]) -> str:
        """Return the parameter of a `values_table` with these rows."""
        return msgspec.json.encode(rows).decode()
