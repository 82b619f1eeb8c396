"""What somebody does who reads an explanation: writes the entry into the file that it names."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.cli.goldens import within


def extension(base, kind, name, code, **manifest):
    """Write an extension of the application that ``trouble`` runs."""
    folder = Path(base, "app", f"{kind}s", name)
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps({"name": name, **manifest}))
    (folder / f"{kind}.py").write_text(code)
    return folder


def about(told, operation):
    """Return what is said about an operation: a line alone does not tell for which it was."""
    return next(one for one in told["now"] if one["operation"] == operation)


def declare(told, operation=""):
    """Write the entries that an explanation names into the file and the place that it names."""
    for now in [about(told, operation)] if operation else told["now"]:
        file = Path(now["file"])
        manifest = json.loads(file.read_text())
        section = re.search(r'"(install|runtime)"', now["advice"])
        place = manifest.setdefault(section[1], {}) if section else manifest
        place.setdefault("access", []).append(now["entry"])
        file.write_text(json.dumps(manifest))


def allow_import(file, told):
    """Name a root in ``allowed_imports`` of a manifest."""
    manifest = json.loads(file.read_text())
    manifest.setdefault("allowed_imports", []).append(told["target"])
    file.write_text(json.dumps(manifest))


def said(line):
    """Return what the program says about a line, to somebody who has no node."""
    found = within(("explain", "--offline", line))
    assert found.status == 0, found.err
    return found.out
