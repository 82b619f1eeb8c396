"""Database of the access service: SQLite by default, PostgreSQL by URL."""

from __future__ import annotations

from .sql_store import SqlStore, open_store

__all__ = ["SqlStore", "open_store"]
