"""Where the service keeps what it must not forget: SQLite by default, PostgreSQL by URL."""

from __future__ import annotations

from .sql import SqlStore, open_store

__all__ = ["SqlStore", "open_store"]
