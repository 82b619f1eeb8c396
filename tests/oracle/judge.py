"""Comparison of what the tracer saw with what the policy grants.

A system call that reached, or tried to reach, something outside the policy is a hole: the guard let it pass. A refusal
by the guard of something inside the policy is a bug. The guard's own questions are told apart by their form:

- an ``O_PATH`` handle gives neither content nor metadata; one that outlives its call was handed out, and counts;
- ``readlinkat`` of an entry of ``/proc/self/fd`` is how the guard asks where a handle leads;
- questions about links and descriptors, in calls that the guard then refused.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from urllib.parse import unquote

READ, WRITE, STREAM = 1, 2 | 4 | 8, 2048
LATE = 0x800000
# The kernel refused the arguments before it looked at an object.
BAD_ARGUMENTS = {-14, -9, -22, -36, -38, -88, -97}
PATH_ARGUMENTS = {-14, -22, -36, -38, -9}
FCNTL_ON_HOST = {1, 3, 5, 9, 11, 16, 36, 1025, 1032, 1034}  # they only ask
FCNTL_COPIES = {0, 1030}  # judged by the file that is copied
FCNTL = FCNTL_ON_HOST | {0, 2, 4, 6, 7, 37, 38, 1030, 1031, 1033, 1036, 1037}
IOCTL = {0x5441, 0x5401, 0x5421, 0x5451, 0x5450, 0x541B, 0x5413, 0x80045430, 0x40045431}
TERMINAL = {0x5402, 0x5403, 0x5404, 0x5409, 0x540A, 0x540B, 0x540F, 0x5410, 0x5414, 0x5425}  # on a terminal of its own
IOCTL_ON_HOST = {0x5401, 0x5413, 0x540F}  # they only ask
FAMILIES = {1, 2, 10}
TYPES = {1, 2, 5}
PRCTL = {0x53564D41, 15, 16, 3, 21, 23, 27, 39}  # names of memory and threads, and questions
PULSE = 10  # the signal by which the driver's own thread interrupts a call that waits
# Names that libraries make up, or take from an argument.
MADE_UP = re.compile(r"(?<=/dev/shm/sem\.)\w+|(?<=/userdb/).+")
O_ACCMODE, O_CREAT, O_PATH, O_TRUNC, O_ASYNC = 3, 0o100, 0o10000000, 0o1000, 0o20000


@dataclass(frozen=True)
class Finding:
    """A hole, a bug, or damage to the host process."""

    kind: str
    window: int
    call: str
    object: str
    result: str = ""

    @property
    def key(self):
        return (self.kind, self.call, self.object)


class Policy:
    """What is granted: paths with masks, nothing else."""

    def __init__(self, entries):
        self.masks = {}
        for path, mask in entries:
            for form in {path, os.path.realpath(path)}:
                self.masks[form] = self.masks.get(form, 0) | mask
        self.roots = [path for path, mask in entries if mask & WRITE]

    def mask(self, path):
        """Return what is granted for a path."""
        granted, at = 0, path.removesuffix(" (deleted)")
        while True:
            granted |= self.masks.get(at, 0)
            if at in ("/", ""):
                return granted
            at = at.rpartition("/")[0] or "/"

    def allows(self, path, need):
        """Return whether a path may be used so."""
        mask = self.mask(path)
        if need == "stat":
            return bool(mask & READ) or any(
                root == path or root.startswith(path.rstrip("/") + "/") for root in self.roots
            )
        if need == "read":
            return bool(mask & READ)
        return bool(mask & WRITE) or (need == "write" and bool(mask & STREAM))


class Judge:
    """Findings in the lines of a report."""

    def __init__(self, policy, denied=(), *, secrets=(), victims=(), ports=()):
        self.policy = policy
        self.denied = denied
        self.secrets = secrets
        self.victims = victims
        self.ports = ports
        self.calls = 0

    def judge(self, line):
        """Return the finding of one line, or None."""
        fields = line.rstrip("\n").split("\t")
        if fields[0] == "call":
            self.calls += 1
            return self._call(fields)
        if fields[0] == "kept":
            path = unquote(fields[3])[1:]
            window = int(fields[1])
            if path.startswith("/") and not self.policy.allows(path, "stat") and not window & LATE:
                return Finding("hole", window, "handle kept", path)
        return None

    def _call(self, fields):
        _, window, process, kind, name, result, *objects = fields
        window, result = int(window), int(result)
        objects = [unquote(text, errors="surrogateescape") for text in objects]
        reason = getattr(self, "_" + kind)(name, result, objects, window, int(process))
        if reason is None:
            return None
        if window & LATE and not self._concerns_secret(objects):
            return None
        outcome = "reached" if result >= 0 else f"errno {-result}"
        return Finding("hole", window & ~LATE, name + (" (late)" if window & LATE else ""), reason, outcome)

    def _concerns_secret(self, objects):
        for text in objects:
            if text[0] == "I" and int(text[1:]) in self.victims:
                return True
            if text[0] == "A" and text.rpartition(":")[2] in self.ports:
                return True
            if any(secret in text for secret in self.secrets):
                return True
        return False

    # ---- objects ---------------------------------------------------------------------------------------------------

    def _path(self, text, need, result, window):
        """Return what is wrong with the use of a path or descriptor, or None."""
        if text[0] == "D":
            return self._descriptor(text, need, window)
        path = text[1:]
        if text[0] != "P" or not path or result in PATH_ARGUMENTS or not path.startswith("/"):
            return None
        return None if self.policy.allows(path, need) else MADE_UP.sub("*", path)

    def _descriptor(self, text, need, window):
        number, owner, target = text[1:].split(",", 2)
        if not target or (need == "stat" and window in self.denied):
            return None
        if target.startswith("/") and not target.startswith(("/memfd:", "/dev/pts", "/dev/ptmx", "/dev/zero")):
            if target.startswith("/SYSV") or self.policy.allows(target, need):
                return None
            return f"descriptor {owner}: {MADE_UP.sub('*', target)}"
        if owner == "host":
            return f"descriptor host: {target.partition(':')[0]}"
        return None

    def _each(self, objects, need, result, window):
        for text in objects:
            if text[0] in "PD":
                wrong = self._path(text, need, result, window)
                if wrong:
                    return wrong
        return None

    # ---- classes ---------------------------------------------------------------------------------------------------

    def _open(self, name, result, objects, window, process):
        flags = next((int(text[1:], 16) for text in objects if text[0] == "V"), 0)
        if flags & O_PATH or (name == "openat2" and result == -40):  # a link, which the guard does not follow
            return None
        writes = flags & O_ACCMODE or flags & (O_CREAT | O_TRUNC)
        return self._each(objects, "write" if writes else "read", result, window)

    def _stat(self, name, result, objects, window, process):
        if name in ("readlinkat", "readlink") and (window in self.denied or objects[0].startswith("P/proc/self/fd/")):
            return None
        return self._each(objects, "stat", result, window)

    def _change(self, name, result, objects, window, process):
        if name == "chroot":
            return "chroot"
        return self._each(objects, "change", result, window)

    def _read(self, name, result, objects, window, process):
        return self._each(objects, "read", result, window)

    _map = _read

    def _write(self, name, result, objects, window, process):
        if name in ("sendfile", "copy_file_range", "splice", "tee"):
            out, source = (objects[0], objects[1]) if name == "sendfile" else (objects[1], objects[0])
            return self._each([source], "read", result, window) or self._each([out], "write", result, window)
        return self._each(objects, "write", result, window)

    def _close(self, name, result, objects, window, process):
        if name == "close_range":
            return "close_range" if result == 0 else None
        return "closes a descriptor of the host" if ",host," in objects[0] and result == 0 else None

    def _dup(self, name, result, objects, window, process):
        if result < 0:
            return None
        if len(objects) > 1 and ",host," in objects[1]:
            return "replaces a descriptor of the host"
        return self._each(objects[:1], "read", result, window)

    def _control(self, name, result, objects, window, process):
        number = next((int(text[1:], 16) for text in objects if text[0] == "V"), 0)
        host = any(text[0] == "D" and ",host," in text for text in objects)
        if result in BAD_ARGUMENTS and result != -22:
            return None
        if name == "fcntl":
            argument = int(objects[2][1:], 16)
            if host and number in FCNTL_COPIES:
                return self._dup(name, result, objects[:1], window, process)
            good = number in (FCNTL_ON_HOST if host else FCNTL) and not (number == 4 and argument & O_ASYNC)
        elif name == "ioctl":
            good = number in (IOCTL_ON_HOST if host else IOCTL | TERMINAL)
        else:
            good = not host
        if good or (window in self.denied and number in FCNTL_ON_HOST):
            return None
        return f"{name} {number:#x} on a descriptor of {'the host' if host else 'its own'}"

    def _socket(self, name, result, objects, window, process):
        family, kind, protocol = (int(text[1:], 16) for text in objects)
        if result < 0 or (family in FAMILIES and (kind & 0xF) in TYPES):
            return None
        return f"socket of family {family}, type {kind & 0xF}"

    def _address(self, name, result, objects, window, process):
        wrong = self._each(objects, "write", result, window)
        address = next((text[1:] for text in objects if text[0] == "A"), "")
        if not address or address == "family:0" or result in BAD_ARGUMENTS:
            return wrong
        if address.startswith("unix:"):
            path = address.removeprefix("unix:")
            return wrong or (None if self.policy.allows(path, "change") else address)
        return wrong or address.rpartition(":")[0]

    _connect = _send = _address

    def _bind(self, name, result, objects, window, process):
        address = next((text[1:] for text in objects if text[0] == "A"), "")
        if address.startswith(("inet:127.", "inet6:[::1]")) or address.endswith(":0"):  # needs no rule
            return None
        return self._address(name, result, objects, window, process)

    def _signal(self, name, result, objects, window, process):
        numbers = [int(text[1:], 16) for text in objects if text[0] == "V"]
        own = objects[0] == f"I{process}"
        if own and numbers[0] in (0, PULSE):
            return None
        target = "itself" if own else "another process"
        return f"signal to {target}"

    def _fork(self, name, result, objects, window, process):
        return "a new process"

    def _execute(self, name, result, objects, window, process):
        return objects[0][1:]

    def _process(self, name, result, objects, window, process):
        numbers = [int(text[1:], 16) for text in objects if text[0] == "V"]
        own = any(text in ("I0", f"I{process}") for text in objects)
        if name == "prlimit64" and own and numbers[1] == 0:
            return None
        if name == "prctl" and numbers[0] in PRCTL:
            return None
        if name in ("memfd_create",) or (name == "personality" and numbers[0] == 0xFFFFFFFF):
            return None
        if name in ("wait4", "waitid") and result == -10:
            return "waits for processes of the host"
        if result in (-14, -38):
            return None
        return f"changes the process: {name}" + (
            f" {numbers[0]:#x}" if name in ("prctl", "setitimer") and numbers else ""
        )


def judge_refusal(policy, code, operation, target):
    """Return whether the refusal of this target is a bug: the policy grants it."""
    if code != "sandbox_filesystem_denied" or not target.startswith("/"):
        return False
    real = os.path.join(os.path.realpath(os.path.dirname(target)), os.path.basename(target))
    need = {"read": "read"}.get(operation.split(",")[0], "change")
    return policy.allows(real, need) and policy.allows(target, need)
