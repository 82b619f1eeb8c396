"""docs/tasks.md: its program prints the shown output, and its numbers are the program's."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from democrai_sandbox.runtime.children.launch_request import ChildrenSettings, base_environment
from democrai_sandbox.runtime.task_queue import TaskSettings

PAGE = (Path(__file__).parents[3] / "docs" / "tasks.md").read_text(encoding="utf-8")


def test_the_program_prints_what_the_page_says(tmp_path):
    """The shown output was really printed."""
    ((program, output),) = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False)
    assert (done.stdout, done.returncode) == (output, 0), done.stderr


def test_the_numbers_are_those_of_the_settings():
    """If one changes, the page has to change."""
    tasks, children = TaskSettings(), ChildrenSettings()
    assert (tasks.per_module, tasks.in_all, tasks.queued_per_module, tasks.keep.days) == (4, 16, 100, 30)
    assert (tasks.timeout, tasks.longest_timeout, tasks.silent_after, tasks.patience) == (3600, 86400, 30, 5)
    assert (children.timeout, children.grace, children.output_limit) == (300, 2, 1 << 20)
    assert children.largest_output_limit == 16 << 20
    for name in base_environment({"LC_ALL": "C", "TZ": "UTC", "LANG": "C", "SECRET": "x"}):
        assert name.startswith("LC_") or f"`{name}`" in PAGE
