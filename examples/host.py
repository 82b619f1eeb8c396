"""Runs a small subject under the guard and prints what became of each thing it tried: ``make tour``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import standin
import subject

if TYPE_CHECKING:
    from democrai_sandbox import AccessQuestion


class Administrator:
    """The host's decider. It is asked what no rule allows, and has approved one page."""

    def __init__(self, page: str) -> None:
        self._page = page

    def decide(self, question: AccessQuestion) -> bool:
        """Only True allows."""
        return (question.operation, question.target) == ("receive", self._page)


def main() -> int:
    """Prepare folders and a server, run the subject under a guard, print the outcome."""
    server = standin.start()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        reports, inbox, scratch = Path(folder, "reports"), Path(folder, "inbox"), Path(folder, "scratch")
        for path in (reports, inbox, scratch):
            path.mkdir()
        # Every subject may use the temp directory; the guard asks where it is when it is imported.
        tempfile.tempdir = str(scratch)
        from democrai_sandbox import configure_guard, process_guard_context  # noqa: PLC0415 - see the line above

        (inbox / "letter.txt").write_text("dear module\n")
        (reports / "shortcut").symlink_to("/etc/passwd")
        configure_guard(decider=Administrator(f"{server}/weather"))
        guard = process_guard_context(
            subject="reports",
            allowed_paths=[reports],
            access=[
                {"resource_type": "filesystem", "operation": "read", "target": str(inbox)},
                {"resource_type": "network", "operation": "receive", "target": f"{server}/news"},
            ],
        )
        print("module reports may read and write", reports)
        print("               and read", inbox)
        print("               and receive", f"{server}/news", "and what lies below it")
        print("an administrator has approved", f"{server}/weather", "\n")
        outcomes = guard.run(subject.work, reports, inbox, server)
    report(outcomes)
    print("The host itself is not guarded:", len(Path("/etc/passwd").read_text().splitlines()), "lines in /etc/passwd.")
    return 0


def report(outcomes: list[subject.Outcome]) -> None:
    """Print each attempt, and with a denial what it says and what would allow it."""
    for sentence, denial in outcomes:
        print("allowed " if denial is None else "stopped ", sentence)
        if denial is not None:
            print("          ", denial)
            print("          ", denial.hint.replace("\n", "\n           "))
    stopped = sum(denial is not None for _, denial in outcomes)
    print(f"\n{len(outcomes) - stopped} allowed, {stopped} stopped.", end=" ")


if __name__ == "__main__":
    sys.exit(main())
