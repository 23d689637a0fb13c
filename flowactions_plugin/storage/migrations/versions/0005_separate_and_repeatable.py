"""Columns that keep organizations apart and make repetitions safe.

Processes of revision 0004 go on beside this one.

Revision ID: 0005
Revises: 0004
"""

from __future__ import annotations

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add columns without values, which neither database copies rows for."""
