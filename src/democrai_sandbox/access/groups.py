"""Pending requests grouped by access, the highest risk first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from .risk import Reason, Risk
    from .values import AccessTuple

MOST_USERS = 5
"""Number of users of a group that are named; the others are only counted."""


@dataclass(frozen=True, slots=True)
class RequestGroup:
    """All pending requests for one access, of all users and sessions."""

    access: AccessTuple
    newest_id: str
    """Newest request; it determines the position in the queue."""
    requests: int
    """Number of requests: one for each waiting user and session."""
    count: int
    """Number of times that the access was requested, by all users together."""
    users: tuple[str, ...]
    """Some of the waiting users, the latest first."""
    user_count: int
    session_count: int
    first_seen: datetime
    last_seen: datetime
    risk: Risk
    risk_reasons: tuple[Reason, ...]
    """Highest risk first."""
    chain: tuple[str, ...]
    """Call chain of the newest request."""
