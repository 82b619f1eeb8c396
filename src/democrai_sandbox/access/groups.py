"""Pending requests as people decide them: one row for all who wait for the same, the riskiest first."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING

from democrai_sandbox.policy import Operation

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from .values import AccessTuple

MOST_USERS = 5
"""Of a group that are named; the others are counted."""


class Risk(StrEnum):
    """How much a yes could cost."""

    HIGH = "high"
    """Something leaves, changes, is lost or is run."""
    MEDIUM = "medium"
    """A connection, over which anything may pass either way."""
    LOW = "low"
    """Something is looked at."""

    @property
    def rank(self) -> int:
        """A number to sort by: more risk, higher number."""
        return _RANKS[self]


_RANKS: Mapping[Risk, int] = MappingProxyType({Risk.HIGH: 2, Risk.MEDIUM: 1, Risk.LOW: 0})

RISKS: Mapping[Operation, Risk] = MappingProxyType(
    {
        **dict.fromkeys((Operation.SEND, Operation.CREATE, Operation.MODIFY), Risk.HIGH),
        **dict.fromkeys((Operation.DELETE, Operation.EXECUTE), Risk.HIGH),
        Operation.CONNECT: Risk.MEDIUM,
        **dict.fromkeys((Operation.RECEIVE, Operation.READ), Risk.LOW),
    }
)
"""What each operation risks. The one table: lists are sorted by it in the database."""


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
    chain: tuple[str, ...]
    """Of the newest request."""
