"""Network checks with few and many rules: series that must stay flat."""

from __future__ import annotations

from importlib import import_module
from itertools import cycle, islice
from time import perf_counter_ns
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bench.cases.sockets import connect_close, connecting, datagram_connect, to_sink
from bench.registry import SHORT_PARTS, Case, Sweep, add

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.fixture import Fixture
    from bench.registry import Access, Loop

RULES = (10, 100, 1_000, 10_000)
URLS = tuple(f"https://api.example.org/v1/item{number}/parts?page=1" for number in range(8))


def _rule(number: int) -> tuple[str, str]:
    """Return a rule; the forms take turns."""
    length = 16 + number % 13
    network = ((10 << 24) + (number << 8)) >> (32 - length) << (32 - length)
    address = ".".join(str(byte) for byte in network.to_bytes(4, "big"))
    return (
        ("receive", f"https://api{number}.example.com/v1/"),
        ("send", f"https://api{number}.example.com/v1/items"),
        ("connect", f"db{number}.example.com:5432"),
        ("connect", f"*.zone{number}.example.com:443"),
        ("connect", f"{address}/{length}"),
    )[number % 5]


def _among(rules: int, own: Callable[[Fixture], Access]) -> Callable[[Fixture], Access]:
    """Declare that many rules, one of which covers the measured access."""
    return lambda bed: (*map(_rule, range(rules - 1)), *own(bed))


def _request_loop(bed: Fixture) -> Loop:
    """Check requests like the client adapters; without a guard, only parse the URLs."""
    request = import_module("democrai_sandbox.guard._core").request if bed.guarded else _split

    def loop(turns: int) -> int:
        urls = list(islice(cycle(URLS), turns))
        start = perf_counter_ns()
        for url in urls:
            request("GET", url)
        return perf_counter_ns() - start

    return loop


def _split(method: str, url: str) -> object:
    return method, urlsplit(url)


def _to_urls(bed: Fixture) -> Access:
    del bed
    return (("receive", "https://api.example.org/v1/"),)


def _register(
    title: str,
    prepare: Callable[[Fixture], Loop],
    own: Callable[[Fixture], Access],
    points: tuple[int, ...] = RULES,
) -> None:
    for rules in points:
        place = Sweep(f"{title} by rules", rules)
        add(Case(f"{title}, {rules} rules", prepare, sweep=place, access=_among(rules, own), parts=SHORT_PARTS))


_register("request check (to urlsplit)", _request_loop, _to_urls)
_register("UDP connect", datagram_connect, connecting("datagrams"))
# Most of this is work of the kernel, so two points are enough.
_register("TCP connect", connect_close, to_sink, (RULES[0], RULES[-1]))
