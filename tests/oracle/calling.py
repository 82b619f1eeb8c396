"""Calls of every native callable with hostile arguments, inside a guard; the program that the tracer runs.

usage: calling.py SPEC   (JSON: base, record, calls, only, skip, part, parts, wide)

The process prepares everything as the host would, then forks; each fork makes the calls of some targets, and one that
crashes or freezes is replaced by one that goes on after that call. What happened is written to the descriptor `record`,
one JSON list per line.
"""

from __future__ import annotations

import fcntl
import gc
import json
import mmap
import os
import re
import resource
import select
import signal
import sys
import time
import traceback

FOLDER = os.path.dirname(os.path.abspath(__file__))
sys.path.append(FOLDER)
os.makedirs(os.environ["TMPDIR"], exist_ok=True)  # below a file system that was mounted a moment ago

import hostile
import instances
import inventory
import world

from democrai_sandbox import process_guard_context
from democrai_sandbox.errors import SandboxDenied
from democrai_sandbox.guard.configuration import allowed_modules
from democrai_sandbox.guard.runtime_paths import runtime_entries

SPAN = 256
"""The most calls of one target: the number of a window is the target's place times this, plus the call's."""
TARGETS_PER_FORK = 60
PATIENCE = 4.0
MEMORY = 640 << 20
WRONG_COUNT = re.compile(
    r"(takes|expected|requires|needs|missing|at least|at most|exactly) .*(argument|item)|unexpected keyword"
    r"|no arguments|keyword argument"
)


class Caller:
    """The calls, as the host makes them."""

    def __init__(self, spec):
        self.spec = spec
        self.places = world.lay_out(spec["base"])
        os.chdir(self.places["ROOT"])
        self.held, objects = world.host_objects(self.places)
        self.names = {**self.places, **objects, "PARENT": os.getpid(), "__name__": "subject", "mark": world.mark}
        self.makers = {}
        self.shared = mmap.mmap(-1, 4096)
        self.targets_per_fork = 1 if spec.get("windows") else TARGETS_PER_FORK
        allowed = [spec["base"]] if spec.get("wide") else [self.places["ROOT"]]
        self.guard_arguments = {"subject": "oracle", "allowed_paths": allowed}
        self.run(load_subject, self.names)
        modules, absent = inventory.load(allowed_modules(), self.run)
        self.targets = list(inventory.targets(modules).values())
        for kind in hostile.ALL:
            self.maker(kind)
        self.kinds = {target.value: target.name for target in self.targets if isinstance(target.value, type)}
        self.names["KIND"] = {name: kind for kind, name in self.kinds.items()}.__getitem__
        self.write(
            "start",
            sorted(absent.items()),
            self.policy(),
            {name: value for name, value in self.names.items() if type(value) in (str, int)},
        )

    def policy(self):
        """Return what the guard grants, as the judge needs it."""
        return [(os.fsdecode(path), mask) for path, mask in runtime_entries()] + [(self.places["ROOT"], 15)]

    def write(self, *fields):
        """Add a line to the record."""
        os.write(self.spec["record"], json.dumps(fields, default=repr).encode() + b"\n")

    def run(self, function, *args):
        """Call it inside a guard; without one where the tracer itself is tried."""
        if self.spec.get("unguarded"):
            return function(*args)
        return process_guard_context(**self.guard_arguments).run(function, *args)

    # ---- values ----------------------------------------------------------------------------------------------------

    def maker(self, source):
        """Return a function that makes the value of this source."""
        if source not in self.makers:
            self.makers[source] = self.run(self.names["maker"], source)
        return self.makers[source]

    def discover(self):
        """Find instances of all types, in a fork; return the source of each by the type's name."""
        read_end, write_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read_end)
            devour_output()
            limit()
            found = instances.discover(self.kinds, lambda source: self.run(self.maker(source)))
            plain = {self.kinds[kind]: source for kind, source in found.items() if kind in self.kinds}
            with open(write_end, "w") as file:
                json.dump(plain, file)
            os._exit(0)
        os.close(write_end)
        with open(read_end) as file:
            found = json.loads(file.read() or "{}")
        os.waitpid(pid, 0)
        return found

    # ---- one fork --------------------------------------------------------------------------------------------------

    def make_calls(self, chosen, first_target, first_call):
        """Make the calls from a place on; in the fork."""
        devour_output()
        limit()
        world.mark(0, world.END)  # what is open now belongs to the host
        world.Pulse(self.shared)
        for place in range(first_target, min(len(chosen), first_target + self.targets_per_fork)):
            index = chosen[place]
            before = host_state(self.names)
            self.call_target(index, first_call if place == first_target else 0)
            gc.collect()
            world.mark(0, world.END)
            world.refresh(self.places, outside=not self.spec.get("landlock"))
            damage = {name: (value, now) for name, value, now in differences(before, host_state(self.names))}
            if damage:
                self.write(
                    "damage", index * SPAN, {name: [repr(part)[:120] for part in pair] for name, pair in damage.items()}
                )
                self.leave(place + 1)
        self.leave(min(len(chosen), first_target + self.targets_per_fork))

    def leave(self, place):
        """Run what guarded code left for the end, and end."""
        self.shared[16:24] = place.to_bytes(8, "little")
        world.ACTIVE[0] = False
        gc.collect()
        import atexit

        atexit._run_exitfuncs()
        os._exit(0)

    def call_target(self, index, first):
        target, impossible, outcomes, acting = self.targets[index], set(), {}, []
        wanted = self.spec.get("windows")
        for number, (positional, keywords) in enumerate(hostile.lists(target, self.spec["calls"])):
            shape = (len(positional), *sorted(keywords))
            if number >= SPAN:
                break
            window = index * SPAN + number
            if number < first or shape in impossible or (wanted is not None and window not in wanted):
                continue
            if wanted is not None:
                owner = self.kinds.get(target.owner) if target.owner else None
                self.write("source", window, target.name, positional, keywords, owner, self.instances.get(owner))
            if any("Mischief" in source or "own_" in source for source in (*positional, *keywords.values())):
                acting.append(window)
            self.shared[0:8] = window.to_bytes(8, "little")
            outcome, detail = self.call(target, positional, keywords, window)
            outcomes[outcome] = outcomes.get(outcome, 0) + 1
            if outcome == "denied":
                self.write("denied", window, *detail)
            elif outcome == "TypeError" and WRONG_COUNT.search(detail):
                impossible.add(shape)
        self.write("done", index, target.name, outcomes, acting)

    def call(self, target, positional, keywords, window):
        """Make one call in its window."""
        makers = [self.maker(name) for name in positional]
        named = {name: self.maker(source) for name, source in keywords.items()}
        world.ACTIVE[0] = True
        try:
            self.run(self.names["perform"], window, target, self.instance_maker(target), makers, named)
            result = "returned", ""
        except SandboxDenied as error:
            result = "denied", (error.code, str(error.operation), str(error.target))
        except world.Interrupted:
            result = "interrupted", ""
        except BaseException as error:
            result = type(error).__name__, plain_text(error)
        finally:
            world.ACTIVE[0] = False
            world.mark(window | world.LATE)
        return result

    def instance_maker(self, target):
        source = self.instances.get(self.kinds.get(target.owner)) if target.owner else None
        return self.maker(source) if source else None

    # ---- all forks -------------------------------------------------------------------------------------------------

    def run_all(self):
        """Make all calls that the spec chooses, fork by fork."""
        self.instances = self.discover()
        only, part, parts = self.spec.get("only"), self.spec.get("part", 0), self.spec.get("parts", 1)
        if self.spec.get("landlock"):
            restrict(self.policy())
            self.control()
        modules = self.spec.get("only_modules")
        windows = self.spec.get("windows")
        places = None if windows is None else {window // SPAN for window in windows}
        chosen = [
            i
            for i, target in enumerate(self.targets)
            if (only is None or target.name in only)
            and (places is None or i in places)
            and (modules is None or target.module in modules)
        ]
        chosen = chosen[part * len(chosen) // parts : (part + 1) * len(chosen) // parts]
        self.write("names", [target.name for target in self.targets])
        self.write("targets", len(chosen), len(self.targets), sorted(set(self.kinds.values()) - set(self.instances)))
        place, call, stuck = 0, 0, {}
        gc.freeze()
        while place < len(chosen):
            self.shared[0:24] = bytes(24)
            self.shared[16:24] = place.to_bytes(8, "little")
            pid = os.fork()
            if pid == 0:
                try:
                    self.make_calls(chosen, place, call)
                except BaseException as error:
                    self.write("broken", int.from_bytes(self.shared[0:8], "little"), traceback.format_exc())
                finally:
                    os._exit(70)
            status = self.attend(pid)
            reached = int.from_bytes(self.shared[16:24], "little")
            if status == 0 and reached > place:
                place, call = reached, 0
                continue
            window = max(int.from_bytes(self.shared[0:8], "little"), chosen[place] * SPAN + call)
            self.write("lost", window, status)
            index = window // SPAN
            stuck[index] = stuck.get(index, 0) + 1
            place, call = chosen.index(index), window % SPAN + 1
            if stuck[index] > 1:
                place, call = place + 1, 0
        os.kill(self.names["VICTIM"], signal.SIGKILL)
        self.write("end")

    def control(self):
        """Try the secret without a guard: both the tracer and Landlock must report it."""
        world.mark(0)
        try:
            os.close(os.open(self.places["SECRET"], os.O_RDONLY))
        except OSError:
            pass
        finally:
            world.mark(0, world.END)

    def attend(self, pid):
        """Wait for a fork; return its exit status, or a word for the way in which it did not go on."""
        handle = os.pidfd_open(pid)
        try:
            seen, since, beats = None, time.monotonic(), b""
            while not select.select([handle], [], [], 0.5)[0]:
                now = self.shared[0:8]
                if now != seen:
                    seen, since, beats = now, time.monotonic(), self.shared[8:16]
                elif time.monotonic() - since > PATIENCE:
                    alive = self.shared[8:16] != beats
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    return "waits" if alive else "freezes"
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        finally:
            os.close(handle)


def load_subject(names):
    """Compile and run the subject's code; inside the guard, so that it belongs to the subject."""
    path = os.path.join(FOLDER, "subject.py")
    with open(path) as file:
        exec(compile(file.read(), path, "exec"), names)


def plain_text(error):
    """Return the text of an error, without calling what guarded code gave it."""
    args = BaseException.__getattribute__(error, "args")
    return args[0][:200] if args and type(args[0]) is str else ""


def devour_output():
    """Give a fork input and output of its own."""
    null = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    os.close(null)


def limit():
    """Keep a fork from taking all memory or disk."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 26, 1 << 26))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def restrict(policy):
    """Let the kernel refuse what the policy does not grant: with Landlock, which can write audit records."""
    from democrai_sandbox.kernel import _native

    reading, everything = 0b1101, 0xFFFF if _native.landlock_abi() >= 5 else 0x7FFF  # execute, read files and folders
    ruleset = _native.landlock_create(everything, 3, 0)
    for path, mask in policy:
        rights = (everything if mask & 14 else reading) if mask & 1 else 0
        rights |= 0b10 if mask & 2048 else 0  # write, to /dev/null
        try:
            fd = os.open(path, os.O_PATH)
        except OSError:
            continue
        if not os.path.isdir(path):
            rights &= 0b1100000000000111
        if rights:
            _native.landlock_add_path(ruleset, fd, rights)
        os.close(fd)
    _native.landlock_restrict(ruleset)
    os.close(ruleset)


def host_state(names):
    """Return what belongs to the host and no subject may change, by name."""
    import faulthandler
    import locale

    mask = os.umask(0o22)
    os.umask(mask)
    state = {
        "working folder": os.readlink("/proc/self/cwd"),
        "umask": mask,
        "signal mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "signal handlers": [signal.getsignal(number) for number in range(1, 32)],
        "recursion limit": sys.getrecursionlimit(),
        "switch interval": sys.getswitchinterval(),
        "digits limit": sys.get_int_max_str_digits(),
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "affinity": sorted(os.sched_getaffinity(0)),
        "limits": [
            resource.getrlimit(number)
            for number in range(resource.RLIM_NLIMITS if hasattr(resource, "RLIM_NLIMITS") else 16)
        ],
        "collector": (gc.isenabled(), gc.get_threshold(), gc.get_debug()),
        "crash handler": faulthandler.is_enabled(),
        "tracing": (sys.gettrace(), sys.getprofile()),
        "locale": locale.setlocale(locale.LC_ALL),
        "timers": [
            signal.getitimer(number)[0] > 0
            for number in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
        ],
        "process group": os.getpgrp(),
        "users": (os.getresuid(), os.getresgid()),
    }
    for name in ("HOST_FILE", "HOST_FOLDER", "HOST_SOCKET", "HOST_PIPE", "HOST_PIPE_WRITE"):
        try:
            number = names[name]
            flags = fcntl.fcntl(number, fcntl.F_GETFL), fcntl.fcntl(number, fcntl.F_GETFD)
            state[name] = (os.readlink(f"/proc/self/fd/{number}"), *flags)
        except OSError as error:
            state[name] = repr(error)
    return state


def differences(before, after):
    """Yield the entries of the host's state that are not what they were."""
    for name, value in before.items():
        if after[name] != value:
            yield name, value, after[name]


if __name__ == "__main__":
    Caller(json.loads(sys.argv[1])).run_all()
