"""Ordinary use of the network works with a suitable manifest."""

from __future__ import annotations

import inspect

import pytest

from tests.guard.network.harness import NetCase
from tests.guard.network.ordinary_work import by_name, work, work_undeclared
from tests.guard.network.workload import (
    own_servers,
    plain_sockets,
    with_aiohttp,
    with_httpx,
    with_requests,
    with_the_standard_library,
)
from tests.services.rows import rows

MODULES = (with_requests, with_the_standard_library, with_httpx, with_aiohttp, plain_sockets, own_servers)
FILES = {module.__file__: [name for name, one in vars(module).items() if inspect.isfunction(one)] for module in MODULES}
ITEMS = [name for names in FILES.values() for name in names]
# They connect to a server of the subject, on a port that is not known in advance.
DIALS_ITSELF = {name for name in ITEMS if name.startswith("own_")} | {"multiprocessing_connection"}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory, bed):
    """Results of all pieces, run once in one child."""
    case = NetCase(tmp_path_factory.mktemp("ordinary"), bed)
    return case.run(work, FILES, sorted(DIALS_ITSELF | {"ftp"}), fresh=True)


@rows("item", ITEMS)
def test_ordinary_work(outcomes, item):
    """One piece of work with a manifest that declares its access."""
    assert outcomes[item] == "ok", outcomes[item]


@pytest.mark.once  # concerns the work alone
def test_the_same_work_without_a_guard(net):
    """The work itself is valid."""
    told = net.run(work, FILES, [], guarded=False, loaded=True)
    assert {name: outcome for name, outcome in told.items() if outcome != "ok"} == {}


def test_without_a_manifest_nothing_of_it_works(net):
    """Except for work inside the process or below the subject's root; and nothing arrives anywhere."""
    told, arrived = net.run(work_undeclared, FILES, loaded=True)
    inside = {"socket_pairs", "own_unix_server"}
    inside |= {f"{library}_{item}" for library in ("httpx", "httpx2") for item in ("mock_transport", "no_target")}
    assert {name for name, outcome in told.items() if outcome == "ok"} == inside
    assert arrived == []


@pytest.mark.once  # the core looks up and checks names
def test_by_host_name(town):
    """Names with several addresses, of both families, in pools and concurrently."""
    zone = {"api.example.com": {"A": ["203.0.113.5", "203.0.113.6"], "AAAA": ["2001:db8::5"]}}
    assert town.run(by_name, zone=zone, loaded=True) == {name: [200] * 3 for name in ("requests", "httpx2", "aiohttp")}
