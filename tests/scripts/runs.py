"""Commands that are ended by signals, and what they may leave on this machine."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
import uuid
from contextlib import suppress
from pathlib import Path

from tests.kernel.netlab import has_ended

ROOT = Path(__file__).resolve().parents[2]
SUPERVISE = ROOT / "scripts" / "supervise"
SECONDS = 120.0
"""How long anything here may take before it is given up."""
STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


def wait_until(condition, what, seconds=SECONDS):
    """Wait for a condition, and return its value; fail when it does not come."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"waited {seconds} s for {what()}" if callable(what) else what
        time.sleep(0.02)
    return value


def parents():
    """Return the parent of each process."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            found[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    return found


def below(pid):
    """Return a process and all its descendants."""
    children = {}
    for child, parent in parents().items():
        children.setdefault(parent, []).append(child)
    found = [pid]
    for each in found:
        found += children.get(each, [])
    return found


def environ_of(pid):
    """Return the environment that a process was started with."""
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(word.decode(errors="replace").partition("=")[::2] for word in words)


def marked(mark):
    """Return the processes that were started with a mark in their environment."""
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if environ_of(path.name).get("MARK") == mark]


def groups():
    """Return the control groups and named networks that are named as ours."""
    found = set()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup" in line:
            found |= set(Path(line.split()[4]).glob("democrai_*"))
    return found | set(Path("/run/netns").glob("*"))


def chains():
    """Return the chains of applications in the packet filter of this network."""
    found = set()
    for name in ("iptables-save", "ip6tables-save"):
        if os.geteuid() == 0 and (program := shutil.which(name, path="/usr/sbin:/sbin")):
            text = subprocess.run([program], capture_output=True, text=True, check=False).stdout
            found |= set(re.findall(r"DEMOCRAI_OS_\d+_\w+", text))
    return found


class Started:
    """A command in a session of its own, with a mark by which its processes are known."""

    def __init__(self, command, folder, **environ):
        self.mark = uuid.uuid4().hex
        self.output = folder / f"output-{self.mark}"
        # Not the settings of the run that this test belongs to, nor those of the make that started it.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS", "RUN_"))}
        kept = {name: value for name, value in kept.items() if not name.startswith(("PYTEST_", "DEMOCRAI_"))}
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=kept | {"MARK": self.mark, **{name: str(value) for name, value in environ.items()}},
                start_new_session=True,
            )
        self.pid = self.process.pid
        self.seen = set()
        self.folders = set()

    @property
    def said(self):
        return self.output.read_text(errors="replace")

    def wait_for(self, condition, what):
        """Wait for something while it runs."""

        def met():
            assert self.process.poll() is None, f"it has ended: {self.said}"
            return condition()

        return wait_until(met, lambda: f"{what}: {self.said}")

    def look(self):
        """Remember all its processes and the folders of its run."""
        self.seen |= set(below(self.pid)) | set(marked(self.mark))
        for pid in self.seen:
            environ = environ_of(pid)
            if environ.get("MARK") == self.mark:
                self.folders |= {Path(environ[name]) for name in ("RUN_FOLDER", "RUN_MEMORY") if environ.get(name)}
        return self.seen

    def end(self, number, whom="make"):
        """Send a signal to the first process, or to its whole group, and return the exit status as a shell has it."""
        self.look()
        if whom == "group":
            os.killpg(self.pid, number)
        else:
            os.kill(self.pid, number)
        return self.wait()

    def wait(self):
        status = self.process.wait(SECONDS)
        return status if status >= 0 else 128 - status

    def left(self):
        """Return what is still there of it."""
        processes = [pid for pid in self.seen | set(marked(self.mark)) if not has_ended(pid)]
        folders = [folder for folder in self.folders if folder.exists()]
        numbers = {str(pid) for pid in self.seen}
        named = [name for name in groups() if numbers & set(re.findall(r"\d+", name.name))]
        rules = [chain for chain in chains() if chain.split("_")[2] in numbers]
        return [*processes, *folders, *named, *rules]

    def kill(self):
        """End whatever is left after a test that failed."""
        for pid in {*below(self.pid), *marked(self.mark)}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(SECONDS)
