"""The SQL that differs between the databases. Each has its subclass: `sqlite.SQLite` and `postgresql.PostgreSQL`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, cast

import msgspec
from sqlalchemy import ClauseElement, ColumnElement, FromClause, Table, literal, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.types import TypeEngine

PARAMSTYLES: Final = ("qmark", "numeric", "named", "format", "pyformat")
"""Of the DB-API (PEP 249)."""


def inline(value: Any) -> ColumnElement[Any]:
    """Write a value into the statement itself: PostgreSQL's plan for a statement depends on it."""
    return literal(value, literal_execute=True)


class Dialect(ABC):
    """Builds SQL for one of the two databases, and says what that database can do.

    Attributes:
        name: the database's name, for messages.
        now_text: `now` in a statement that is written as text.
        is_server: whether it has a clock of its own, ends a statement whose caller is cancelled, lets processes notify each
            other, keeps the entries of changed rows in indexes for a while, has LATERAL, and can write to two tables in one
            statement. If not, one transaction writes at a time, and its statements take no round trip.
        made_by: SQLAlchemy's dialect.
        insert: returns an INSERT into a table that can have an ON CONFLICT.
    """

    name: ClassVar[str]
    now_text: ClassVar[str]
    is_server: ClassVar[bool]
    made_by: ClassVar[Callable[..., Any]]
    insert: Callable[[Table], postgresql.Insert | sqlite.Insert]

    @abstractmethod
    def now(self) -> ColumnElement[int]:
        """Return the current time, Unix milliseconds, as an SQL expression: the server's own, or a given clock's."""

    def compiled(self, statement: ClauseElement, paramstyle: str) -> SQLCompiler:
        """Return a statement as text for drivers of the DB-API with one of `PARAMSTYLES`."""
        return cast("SQLCompiler", statement.compile(dialect=self.made_by(paramstyle=paramstyle)))

    def insert_unless_there(self, table: Table) -> postgresql.Insert | sqlite.Insert:
        """Return an INSERT that does nothing for a row whose unique key exists."""
        return self.insert(table).on_conflict_do_nothing()

    def values_table(self, name: str, **columns: type[TypeEngine[Any]]) -> FromClause:
        """Return a table of the rows in one parameter, so that one statement serves any number of rows.

        Args:
            name: the name of the table, and of the parameter, whose value `json_rows` returns.
            columns: each column's SQLAlchemy type.
        """
        kinds = {column: kind().compile(dialect=self.made_by()) for column, kind in columns.items()}
        return text(self.rows_text(name, kinds)).columns(**columns).subquery(name)

    @abstractmethod
    def rows_text(self, name: str, columns: Mapping[str, str]) -> str:
        """Return the same as text: a query of the rows in the parameter; its columns have types of PostgreSQL."""

    @staticmethod
    def json_rows(rows: Sequence[Mapping[str, Any] | msgspec.Struct]) -> str:
        """Return the parameter of a `values_table` with these rows."""
        return msgspec.json.encode(rows).decode()

    @staticmethod
    @abstractmethod
    def bytes_value(value: bytes) -> str | None:
        """Return bytes as a value of `json_rows`; ``None``: they cannot be one."""
