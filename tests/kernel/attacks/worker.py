"""Confinement of a worker, for a process that confines itself instead of being started confined."""

from __future__ import annotations

import os
from functools import cache

from democrai_sandbox.kernel import _native
from democrai_sandbox.kernel.landlock.raw_ruleset import build
from democrai_sandbox.kernel.seccomp import filters
from democrai_sandbox.kernel.spawn.confinement import confinement_of, enforcement_of
from democrai_sandbox.runtime.confinement.process_paths import ProtectedPaths, runtime_paths, written_places

KEPT_CAPABILITIES = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 4
"""chown, dac_override, fowner, fsetid: capabilities that a confined child of root keeps."""


@cache
def readable():
    """Return the paths that the interpreter reads and executes, which are the same for all workers."""
    return runtime_paths()


def confinement(rules, *, protected, temp):
    """Compute the confinement of a worker with these rules."""
    runtime, shut = readable(), ProtectedPaths(tuple(protected), written=written_places(rules, temp))
    return confinement_of(
        shut.rules(rules),
        runtime_read=shut.paths(runtime.read),
        runtime_execute=shut.paths(runtime.execute),
        own_write=shut.paths([temp]),
    )


def confine(wanted) -> None:
    """Apply the restrictions of the spawn server, and those that a worker adds itself."""
    enforced = enforcement_of(wanted, _native.landlock_abi(), root=os.geteuid() == 0)
    plan = enforced.plan
    ruleset, _ = build(_native, plan.fs, plan.net, plan.scoped, plan.paths, plan.ports)
    _native.landlock_add_own_proc(ruleset, plan.own_proc & plan.fs, plan.whole_proc)
    _native.drop_capabilities(KEPT_CAPABILITIES)
    _native.landlock_restrict(ruleset)
    os.close(ruleset)
    for program in (enforced.filter, filters.program(filters.NO_EXEC)):
        assert _native.seccomp_install(program, 0) == 0
