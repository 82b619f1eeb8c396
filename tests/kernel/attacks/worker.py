"""The confinement of a worker process, for a process that takes it upon itself instead of being started with it."""

from __future__ import annotations

import os
import sys

from democrai_sandbox.guard.runtime_paths import runtime_entries
from democrai_sandbox.kernel import _native
from democrai_sandbox.kernel.landlock.building import build
from democrai_sandbox.kernel.seccomp import filters
from democrai_sandbox.kernel.spawn.confinement import confinement_of, enforcement_of

KEPT_CAPABILITIES = 1 << 0 | 1 << 1 | 1 << 3 | 1 << 4
"""chown, dac_override, fowner, fsetid: what a confined child of root keeps."""


def confinement(rules, *, protected=(), temp=None):
    read = [os.fsdecode(path) for path, _ in runtime_entries()]
    return confinement_of(
        rules,
        runtime_read=[path for path in read if not path.startswith(("/tmp", os.environ.get("TMPDIR", "/tmp")))],
        runtime_execute=("/usr", "/bin", "/lib", sys.prefix, sys.base_prefix),
        temp=temp,
        **({"protected": protected} if "protected" in confinement_of.__kwdefaults__ else {}),
    )


def confine(wanted) -> None:
    """Do to this process what the spawn server does to a worker, and what a worker does to itself then."""
    enforced = enforcement_of(wanted, _native.landlock_abi(), root=os.geteuid() == 0)
    plan = enforced.plan
    ruleset, _ = build(
        _native, plan.fs, plan.net, plan.scoped, [*plan.paths, ("/proc/self", plan.own_proc)], plan.ports
    )
    _native.drop_capabilities(KEPT_CAPABILITIES)
    _native.landlock_restrict(ruleset)
    os.close(ruleset)
    for program in (enforced.filter, filters.program(filters.NO_EXEC)):
        assert _native.seccomp_install(program, 0) == 0
