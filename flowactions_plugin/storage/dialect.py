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
    select,
)
from sqlalchemy.dialects import postgresql, sqlite

from flowactions_plugin.clock import Clock


class Dialect:
    """Writes SQL for one of the two.

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
        """Give the present, Unix milliseconds, as an SQL expression by the clock that this database goes by."""
        if self.dialect == "postgresql":
            # Stable within a statement, so an index on a time can be searched with it.
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
        """Start an INSERT that does nothing for a row whose unique key is taken."""
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
        """Make an INSERT that takes the place of the row that has its primary key.

        Args:
            table: into which.
            values: of all columns.
            where: what must hold of the present row for that; otherwise it stays, and none is returned.
            keep: columns of the present row that stay.
        """
        key = [column.name for column in table.primary_key]
        rest = {name: value for name, value in values.items() if name not in key and name not in keep}
        kind = postgresql.insert if self.dialect == "postgresql" else sqlite.insert
        return kind(table).values(values).on_conflict_do_update(index_elements=key, set_=rest, where=where)

    def table_of(self, name: str, **columns: type[Any]) -> FromClause:
        """Make a table of rows that come with the statement, so that one statement serves any number of them.

        Args:
            name: of the table, and of the parameter that gives its rows, written by `rows`.
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
    def rows(rows: Sequence[Mapping[str, Any]]) -> str:
        """Write JSON-ready rows as the parameter of a `table_of`."""
        return msgspec.json.encode(rows).decode()
