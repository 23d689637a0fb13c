from __future__ import annotations

import pytest
from sqlalchemy import Column, Integer, MetaData, Table

from flowactions_hookspecs import FlowActionsError
from flowactions_hookspecs import errors as of_contract
from flowactions_plugin import errors as of_plugin
from flowactions_plugin.queue import rules
from flowactions_plugin.storage import schema
from tests.docs import error_pages, tables


def test_the_page_of_tables_is_current() -> None:
    """Every table and column is on it, with what it means."""
    assert tables.PAGE.read_text() == tables.render(), tables.COMMAND


def test_a_column_without_a_meaning_is_found() -> None:
    """A new column needs a comment, or a line beside the generator."""
    column = Column("another", Integer)
    with pytest.raises(KeyError, match="write a comment"):
        tables.meaning(Table("flowactions_outbox", MetaData(), column), column, {})


def test_no_meaning_is_of_a_column_that_is_gone() -> None:
    """What stands beside the generator is used."""
    known = {name: {"table", *table.columns.keys()} for name, table in schema.metadata.tables.items()}
    for name, meanings in tables.MEANINGS.items():
        columns = set().union(*known.values()) if name == tables.ANY else known[name]
        assert set(meanings) <= columns, name


def test_no_meaning_is_said_twice() -> None:
    """A column with a comment has none beside the generator."""
    for table, column in tables.comments():
        assert column not in tables.MEANINGS[table], f"{table}.{column}"


def test_the_page_of_error_codes_is_current() -> None:
    """Problems, kinds of failure and exceptions of the contract are on it as they are in the code."""
    assert error_pages.PAGE.read_text() == error_pages.render(), error_pages.COMMAND


def test_no_exception_is_missing_in_a_tree() -> None:
    """The trees name every class of both modules, with a meaning."""
    for module in (of_contract, of_plugin):
        classes = {
            name
            for name, kind in vars(module).items()
            if isinstance(kind, type) and issubclass(kind, FlowActionsError)
        }
        assert classes - {"FlowActionsError"} <= error_pages.every().keys()
    assert all(error_pages.every().values())


def test_rules_on_the_page_of_guarantees_are_those_of_the_code() -> None:
    """Lease, attempts and backoff are the numbers of the rules."""
    page = (tables.PAGE.parents[1] / "explanation" / "claiming.md").read_text()
    assert f"{rules.CLAIM_SECONDS:.0f} seconds" in page
    assert f"reclaimed {schema.QUARANTINE_AFTER} times" in page
