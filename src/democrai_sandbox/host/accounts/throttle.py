"""Failed sign-ins, counted in the database for all nodes.

Three counts limit guessing: by name and address together, by name, and by address. Those by name or address alone are
generous and short, and do not apply to a name at an address where it signed in before. So an attacker who fails on
purpose cannot lock out a user at another address. A user who shares the attacker's address must wait too.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from ipaddress import IPv6Address, ip_address, ip_network
from types import MappingProxyType
from typing import TYPE_CHECKING

from sqlalchemy import Connection, delete, func, insert, select, update

from democrai_sandbox.errors import SignInThrottled

from .tables import throttle

if TYPE_CHECKING:
    from datetime import datetime

MOST_ROWS = 20_000
"""Maximum number of counts; those that expire first are removed."""
_KNOWN_FOR = timedelta(days=90)
_NO_TIME = timedelta(0)


@dataclass(frozen=True, slots=True)
class _ThrottleRule:
    """Number of free failures, and the wait after the next ones: 1, 2, 4... seconds."""

    free: int
    longest: int
    memory: timedelta

    def pause(self, failures: int) -> timedelta:
        if failures < self.free:
            return _NO_TIME
        doubled = min(failures - self.free, 20)
        return timedelta(seconds=min(2**doubled, self.longest))


_RULES = MappingProxyType(
    {
        "pair": _ThrottleRule(free=5, longest=900, memory=timedelta(days=1)),
        "name": _ThrottleRule(free=50, longest=30, memory=timedelta(hours=1)),
        "address": _ThrottleRule(free=50, longest=30, memory=timedelta(hours=1)),
    }
)


@dataclass(frozen=True, slots=True)
class SignInAttempt:
    """Running sign-in. It counts as failed until it is settled, so that parallel attempts gain nothing."""

    name: str
    address: str
    failures: int
    """Failures of this name from this address, including this one."""
    counted: tuple[str, ...]


def begin(connection: Connection, name: str, address: str, now: datetime) -> SignInAttempt:
    """Count a sign-in; raise ``SignInThrottled`` without counting if it is too early."""
    kinds = ("pair",) if _is_known(connection, name, address, now) else tuple(_RULES)
    keys = {kind: _key(kind, name, address) for kind in kinds}
    # Locked in a fixed order to avoid deadlocks.
    counts = {kind: _locked(connection, keys[kind], now) for kind in sorted(kinds, key=keys.__getitem__)}
    longest = max(_wait(_RULES[kind], count, now) for kind, count in counts.items())
    if longest > _NO_TIME:
        raise SignInThrottled(-(-longest // timedelta(seconds=1)))
    for kind, count in counts.items():
        _put(connection, keys[kind], count.failures + 1, now, _RULES[kind].memory)
    _make_room(connection, now)
    return SignInAttempt(name, address, counts["pair"].failures + 1, kinds)


def settle(connection: Connection, attempt: SignInAttempt, now: datetime) -> None:
    """Remove the failures before a successful sign-in, and record that the name was used at the address."""
    withdraw(connection, attempt)
    connection.execute(delete(throttle).where(throttle.c.key == _key("pair", attempt.name, attempt.address)))
    _put(connection, _key("known", attempt.name, attempt.address), 0, now, _KNOWN_FOR)


def withdraw(connection: Connection, attempt: SignInAttempt) -> None:
    """Remove the count of one sign-in that was not compared, or succeeded."""
    keys = sorted(_key(kind, attempt.name, attempt.address) for kind in attempt.counted)
    for key in keys:
        here = (throttle.c.key == key, throttle.c.failures > 0)
        connection.execute(update(throttle).where(*here).values(failures=throttle.c.failures - 1))


def forget(connection: Connection, now: datetime) -> None:
    """Remove expired counts."""
    connection.execute(delete(throttle).where(throttle.c.forget_at <= now))


@dataclass(frozen=True, slots=True)
class _FailureCount:
    failures: int
    last_at: datetime


def _is_known(connection: Connection, name: str, address: str, now: datetime) -> bool:
    here = (throttle.c.key == _key("known", name, address), throttle.c.forget_at > now)
    return connection.execute(select(throttle.c.key).where(*here)).first() is not None


def _locked(connection: Connection, key: str, now: datetime) -> _FailureCount:
    """Return a count that is locked until the transaction ends.

    A missing row cannot be locked, so it is created first; if two callers create it, the second one retries.
    """
    row = connection.execute(select(throttle).where(throttle.c.key == key).with_for_update()).one_or_none()
    if row is None:
        connection.execute(insert(throttle), {"key": key, "failures": 0, "last_at": now, "forget_at": now})
    return _FailureCount(0, now) if row is None or row.forget_at <= now else _FailureCount(row.failures, row.last_at)


def _put(connection: Connection, key: str, failures: int, now: datetime, memory: timedelta) -> None:
    values = {"failures": failures, "last_at": now, "forget_at": now + memory}
    if connection.execute(update(throttle).where(throttle.c.key == key).values(**values)).rowcount == 0:
        connection.execute(insert(throttle), {"key": key, **values})


def _make_room(connection: Connection, now: datetime) -> None:
    forget(connection, now)
    count = connection.execute(select(func.count()).select_from(throttle)).scalar_one()
    if count > MOST_ROWS:
        first = select(throttle.c.key).order_by(throttle.c.forget_at).limit(count - MOST_ROWS)
        connection.execute(delete(throttle).where(throttle.c.key.in_(first.scalar_subquery())))


def _wait(rule: _ThrottleRule, row: _FailureCount, now: datetime) -> timedelta:
    """Return the remaining wait; a clock that was set back never extends it beyond the rule."""
    pause = rule.pause(row.failures)
    return min(row.last_at + pause - now, pause)


def _key(kind: str, name: str, address: str) -> str:
    who = "" if kind == "address" else name
    where = "" if kind == "name" else _address_key(address)
    text = repr((kind, who, where))
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _address_key(address: str) -> str:
    """Return the key of an address: for IPv6 the network, because a client controls all its addresses."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ip_network((found.packed[:8] + bytes(8), 64)).network_address)
    return str(found)
