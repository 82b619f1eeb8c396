"""Fixtures of the network tests: real servers on loopback, and a namespace with forged names."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.guard.network.harness import NetCase, Town, TownCase, why_no_namespaces
from tests.guard.network.servers.all_servers import Bed
from tests.services.ports import port


@pytest.fixture(scope="session")
def bed(tmp_path_factory):
    """Servers for all tests of this process."""
    with Bed(tmp_path_factory.mktemp("bed")) as running:
        yield running


@pytest.fixture
def net(tmp_path, bed):
    """Private world with servers."""
    return NetCase(tmp_path, bed)


@pytest.fixture(scope="session")
def namespace(tmp_path_factory):
    """Network namespace with separate servers and names, for all tests of this process."""
    if reason := why_no_namespaces():
        pytest.skip(reason)
    running = Town(tmp_path_factory.mktemp("town"))
    yield running
    running.close()


@pytest.fixture
def town(tmp_path, namespace):
    """Private world in which every address and name leads to the servers of the test."""
    return TownCase(tmp_path, namespace)


@pytest.fixture
def free_port():
    """Port without a listener, unless the test adds one."""
    with port() as number:
        yield number


# In a process that loads this, the clock is LATER seconds ahead, from one moment to the next.
_LATER = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int (*original)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int result = original(clock, now);
    const char *seconds = getenv("LATER");
    if (result == 0 && clock == CLOCK_MONOTONIC && seconds != NULL) {
        now->tv_sec += atol(seconds);
    }
    return result;
}
"""


@pytest.fixture(scope="session")
def clock(tmp_path_factory):
    """Environment of a child that can move its clock ahead by setting LATER."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler to make a clock with")
    folder = tmp_path_factory.mktemp("clock")
    (folder / "later.c").write_text(_LATER)
    made = folder / "later.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", made, folder / "later.c", "-ldl"], check=True)
    return {"LD_PRELOAD": str(made)}
