"""Removals under a guard have the results, errors and events of those without one."""

from __future__ import annotations

import os
import sys


def removals(world):
    """Return the results of unusual removals without a guard, under one, and under one with a hook of the host."""
    from democrai_sandbox import process_guard_context

    root = f"{world.root}/removals"

    def lay_out():
        os.makedirs(f"{root}/full/part", exist_ok=True)
        os.makedirs(f"{root}/empty", exist_ok=True)
        for name in ("file", "other", "full/file"):
            with open(f"{root}/{name}", "w") as file:
                file.write("x")
        if not os.path.lexists(f"{root}/link"):
            os.symlink("empty", f"{root}/link")

    calls = {
        "file": lambda: os.unlink(f"{root}/file"),
        "file as bytes": lambda: os.remove(f"{root}/other".encode()),
        "file by keyword": lambda: os.remove(path=f"{root}/full/file"),
        "file with a slash": lambda: os.unlink(f"{root}/file/"),
        "missing": lambda: os.unlink(f"{root}/missing"),
        "folder": lambda: os.unlink(f"{root}/empty"),
        "link": lambda: os.unlink(f"{root}/link"),
        "link as a folder": lambda: os.rmdir(f"{root}/link"),
        "empty folder with a slash": lambda: os.rmdir(f"{root}/empty/"),
        "full folder": lambda: os.rmdir(f"{root}/full"),
        "file as a folder": lambda: os.rmdir(f"{root}/file"),
        "below a file": lambda: os.unlink(f"{root}/file/x"),
        "two positions": lambda: os.unlink(f"{root}/file", None),
        "unknown keyword": lambda: os.unlink(f"{root}/file", follow_symlinks=False),
        "nothing": lambda: os.rmdir(),
    }

    def result(call):
        lay_out()
        try:
            call()
        except OSError as error:
            return [type(error).__name__, error.errno, error.filename]
        except TypeError:
            return "TypeError"
        return sorted(os.listdir(root))

    def run():
        return {name: result(call) for name, call in calls.items()}

    guard = process_guard_context(subject="demo", allowed_paths=[world.root])
    plain, guarded = run(), guard.run(run)
    seen = []
    sys.addaudithook(lambda event, args: seen.append((event, *args)) if event in {"os.remove", "os.rmdir"} else None)
    lay_out()
    guard.run(os.unlink, f"{root}/file")
    guard.run(os.rmdir, f"{root}/empty")
    wanted = [("os.remove", f"{root}/file", -1), ("os.rmdir", f"{root}/empty", -1)]
    return {
        "different": {name: [plain[name], guarded[name]] for name in calls if plain[name] != guarded[name]},
        "heard": seen == wanted,
    }


class TestRemoval:
    def test_results_errors_and_events_are_those_without_a_guard(self, case):
        """Links, slashes, missing names and wrong arguments give equal results; other hooks hear of each removal."""
        assert case.run(removals) == {"different": {}, "heard": True}
