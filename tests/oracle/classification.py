"""The checked-in class of each native callable, one file per minor version: `callables-3.11.txt` and so on.

`pure`: it made no system call that the tracer reports. `guarded`: it made some, which the oracle compares with the
policy. `refused`: the guard refused every call. `breaks`: a call crashed, froze or ended the process. A line has a
class, a module and the names in that module; a space in a name is written %20.
"""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).parent
WIDTH = 118
SPAN = 256


def path_of(minor):
    """Return the file of a minor version."""
    return FOLDER / f"callables-{minor}.txt"


def read(minor):
    """Return the class of each callable."""
    known = {}
    for line in path_of(minor).read_text().splitlines():
        if line and not line.startswith("#"):
            kind, module, *names = line.split()
            known.update((f"{module}.{name}".replace("%20", " "), kind) for name in names)
    return known


def classes(run):
    """Return the class of each callable as a traced run shows it."""
    result = {}
    lost = {window // SPAN for window, _ in run.lost}
    for index, name in enumerate(run.all_names):
        if name not in run.outcomes and index not in lost:
            continue  # not chosen for this run
        outcomes = run.outcomes.get(name, {})
        reached = set(outcomes) - {"TypeError", "OverflowError", "ValueError"}
        if index in lost:
            result[name] = "breaks"
        elif reached == {"denied"}:
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
        for name in (name.replace(" ", "%20") for name in names):
            if len(line) + 1 + len(name) > WIDTH:
                lines.append(line)
                line = f"{kind} {module}"
            line += " " + name
        lines.append(line)
    path_of(minor).write_text("\n".join(lines) + "\n")


def this_minor():
    """Return the minor version of this interpreter."""
    return "{}.{}".format(*sys.version_info)
