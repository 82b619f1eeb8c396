"""Operations that migrations share. Finished migrations depend on them, so their results must stay the same."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op


def is_postgresql() -> bool:
    """Return whether the database is PostgreSQL."""
    return op.get_context().dialect.name == "postgresql"


def big_integer() -> Any:
    """Return the type of 64-bit numbers."""
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def number(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    """Return a column of 64-bit numbers."""
    return sa.Column(name, big_integer(), nullable=nullable)


def text(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    """Return a column of texts."""
    return sa.Column(name, sa.Text, nullable=nullable)


def one_of(column: str, values: tuple[str, ...]) -> sa.CheckConstraint:
    """Return the constraint that a column contains only these texts."""
    listed = ", ".join(f"'{value}'" for value in values)
    return sa.CheckConstraint(f"{column} IN ({listed})", name=f"ck_{column}")


def create_table(name: str, *parts: Any) -> None:
    """Create a table with strict types."""
    op.create_table(name, *parts, sqlite_strict=True)


def create_index(name: str, table: str, columns: list[str], where: str | None = None, *, unique: bool = False) -> None:
    """Create an index, of the rows that match a condition if there is one."""
    condition = None if where is None else sa.text(where)
    op.create_index(name, table, columns, unique=unique, sqlite_where=condition, postgresql_where=condition)


def protect_audit_in_sqlite() -> None:
    """Make the audit table append-only. ``INSERT OR REPLACE`` bypasses the delete trigger, so it has its own one."""
    refuse = "BEGIN SELECT RAISE(ABORT, 'access_audit is append-only'); END"
    op.execute(f"CREATE TRIGGER access_audit_no_update BEFORE UPDATE ON access_audit {refuse}")
    op.execute(f"CREATE TRIGGER access_audit_no_delete BEFORE DELETE ON access_audit {refuse}")
    taken = "EXISTS (SELECT 1 FROM access_audit WHERE sequence = NEW.sequence)"
    op.execute(f"CREATE TRIGGER access_audit_no_replace BEFORE INSERT ON access_audit WHEN {taken} {refuse}")
