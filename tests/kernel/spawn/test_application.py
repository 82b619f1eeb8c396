"""A confined application still starts programs, through the server that it started before."""

from __future__ import annotations

import pytest

from tests.kernel import forked_programs
from tests.kernel.spawn.programs import ABI

_APPLICATION = """
import os, signal, subprocess, sys, tempfile
from democrai_sandbox.errors import SpawnFailed
from democrai_sandbox.kernel import _native
from democrai_sandbox.kernel.landlock import rights
from democrai_sandbox.kernel.landlock.rights import landlock_support
from democrai_sandbox.kernel.landlock.ruleset import PathRule, RulesetPlan, build, numbers
from democrai_sandbox.kernel.seccomp import filters
from democrai_sandbox.kernel.spawn import SpawnServer
from tests.kernel.spawn.programs import confined, python, run, shell, order, until, is_running

server = SpawnServer.start()
abi = landlock_support().abi
folder = tempfile.mkdtemp()
paths = [PathRule(path, rights.EXECUTE) for path in ("/usr", "/lib", "/bin", "/etc", "/proc", "/dev", sys.base_prefix)]
plan = RulesetPlan((*paths, PathRule(folder, rights.WRITE), PathRule(os.getcwd(), rights.READ)))
with build(plan, abi) as built:
    _native.landlock_restrict(built.fd)
server.baseline(numbers(plan, abi))
assert _native.seccomp_install(filters.program(filters.APPLICATION), 0) == 0
try:
    os.listdir("/var")
except PermissionError:
    pass
else:
    raise AssertionError("the application is not confined")

assert shell(server, "echo works; exit 7")[:2] == (7, "works\\n")
assert shell(server, f"echo x > {folder}/made && cat {folder}/made").out == "x\\n"
assert "Permission denied" in shell(server, "echo > /var/made").err
assert shell(server, "true", env={f"N{n}": "x" * 9000 for n in range(20)}, **confined()).returncode == 0
child = server.spawn(order("/bin/sleep", "300"))
child.signal_group(signal.SIGTERM)
assert child.collect() == -signal.SIGTERM
child = server.spawn(order("/bin/sleep", "300"))
child.close()
try:
    server.spawn(order("/nowhere/program"))
except FileNotFoundError:
    pass
assert server.alive
server.stop()
assert not server.alive
print("fine")
"""


@pytest.mark.skipif(ABI < 1, reason="needs Landlock")
def test_a_confined_application_starts_signals_and_ends_programs():
    done = forked_programs.run(_APPLICATION, folder=forked_programs.ROOT)
    assert done.stdout == "fine\n", done.stderr
