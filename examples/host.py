"""Runs a small subject under the guard and prints what became of each thing it tried: ``make run``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import subject


def main() -> int:
    """Prepare two folders, run the subject under a guard, print the outcome."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        reports, inbox, scratch = Path(folder, "reports"), Path(folder, "inbox"), Path(folder, "scratch")
        for path in (reports, inbox, scratch):
            path.mkdir()
        # Every subject may use the temp directory; the guard asks where it is when it is imported.
        tempfile.tempdir = str(scratch)
        from democrai_sandbox import process_guard_context  # noqa: PLC0415 - see the line above

        (inbox / "letter.txt").write_text("dear module\n")
        (reports / "shortcut").symlink_to("/etc/passwd")
        guard = process_guard_context(
            subject="reports",
            allowed_paths=[reports],
            access=[{"resource_type": "filesystem", "operation": "read", "target": str(inbox)}],
        )
        print("module reports may read and write", reports, "\n               and read", inbox, "\n")
        outcomes = guard.run(subject.work, reports, inbox)
    for sentence, denial in outcomes:
        print("allowed " if denial is None else "stopped ", sentence)
        if denial is not None:
            print("          ", denial)
            print("          ", denial.hint.replace("\n", "\n           "))
    stopped = sum(denial is not None for _, denial in outcomes)
    print(f"\n{len(outcomes) - stopped} allowed, {stopped} stopped. The host itself is not guarded:", end=" ")
    print(len(Path("/etc/passwd").read_text().splitlines()), "lines in /etc/passwd.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
