"""Pending requests as people decide them: one row for all who wait for the same, the riskiest first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from .risk import Reason, Risk
    from .values import AccessTuple

MOST_USERS = 5
"""Of a group that are named; the others are counted."""


@dataclass(frozen=True, slots=True)
class RequestGroup:
    """All pending requests for one tuple, whoever made them."""

    access: AccessTuple
    newest_id: str
    """The request that was put down last; the group has its place in the queue by it."""
    requests: int
    """One for each user and session that wait."""
    count: int
    """How often it was asked for, by all of them together."""
    users: tuple[str, ...]
    """Some of those who wait, who came last first."""
    user_count: int
    session_count: int
    first_seen: datetime
    last_seen: datetime
    risk: Risk
    risk_reasons: tuple[Reason, ...]
    """The highest first."""
    chain: tuple[str, ...]
    """Of the newest request."""
