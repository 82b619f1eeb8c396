"""The checked-in class of each native callable, one file per minor version: `callables-3.11.txt` and so on.

`pure`: it made no system call that the tracer reports. `guarded`: it made some, all inside the policy or accepted.
`refused`: the guard refused every call. A line has a class, a module and the names in that module.
"""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parent
WIDTH = 118


def path_of(minor):
    """Return the file of a minor version."""
    return FOLDER / f"callables-{minor}.txt"


def read(minor):
    """Return the class of each callable."""
    known = {}
    for line in path_of(minor).read_text().splitlines():
        if line and not line.startswith("#"):
            kind, module, *names = line.split()
            known.update((f"{module}.{name}", kind) for name in names)
    return known


def classes(run):
    """Return the class of each callable as a traced run shows it."""
    result = {}
    for index, name in run.names.items():
        outcomes = run.outcomes.get(name, {})
        reached = set(outcomes) - {"TypeError", "OverflowError", "ValueError"}
        if reached == {"denied"}:
            result[name] = "refused"
        else:
            result[name] = "guarded" if index in run.touched or "denied" in reached else "pure"
    return result


def write(minor, known):
    """Write the file of a minor version; modules that this build does not have keep their lines."""
    if path_of(minor).exists():
        here = {name.partition(".")[0] for name in known}
        known = {name: kind for name, kind in read(minor).items() if name.partition(".")[0] not in here} | known
    lines = [
        "# The class of each callable of the native modules that guarded code loads; see classification.py.",
        "# Written by `python -m tests.oracle --classify`; review the diff.",
    ]
    by_group = {}
    for name, kind in sorted(known.items()):
        module, _, rest = name.partition(".")
        by_group.setdefault((module, kind), []).append(rest)
    for (module, kind), names in sorted(by_group.items()):
        line = f"{kind} {module}"
        for name in names:
            if len(line) + 1 + len(name) > WIDTH:
                lines.append(line)
                line = f"{kind} {module}"
            line += " " + name
        lines.append(line)
    path_of(minor).write_text("\n".join(lines) + "\n")


def this_minor():
    """Return the minor version of this interpreter."""
    return "{}.{}".format(*sys.version_info)
