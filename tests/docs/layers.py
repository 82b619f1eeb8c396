"""``python -m tests.docs.layers``: which layer stops which act, tried for real, as the table in SECURITY.md.

Every act is tried once with nothing in the way, to show that it works, and once under each layer alone and under all of
them: in a fork each, which is put under the layer as a worker process of a subject is, and then acts. The subject may
use one folder and one URL. The packet filter is tried in a network of its own, and needs root; its column is left out
without it.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

from tests.docs.layer_acts import ACTS, NATIVE
from tests.services import places

NOTHING, GUARD, LANDLOCK, SECCOMP, EGRESS, ALL = "nothing", "guard", "Landlock", "seccomp", "packet filter", "all"
COLUMNS = (GUARD, LANDLOCK, SECCOMP, EGRESS, ALL)
THROUGH, STOPPED = "through", "stopped"
HERE = Path(__file__).resolve()
_SECONDS = 250


def measured():
    """Return ``{column: {(act, by): outcome}}``, as far as this machine can tell."""
    found = _asked([sys.executable], "plain")
    if can_filter():
        # A network of its own: no rule is ever put where others work.
        start = f'ip link set lo up && exec "{sys.executable}" "$@"'
        found |= _asked(["unshare", "--net", "sh", "-c", start, "sh"], "filtered")
    return {column: {tuple(act.split("|")): told for act, told in rows.items()} for column, rows in found.items()}


def can_filter():
    """Tell whether a packet filter can be tried here."""
    has_cgroups = " - cgroup2 " in Path("/proc/self/mountinfo").read_text()
    return os.geteuid() == 0 and has_cgroups and all(map(shutil.which, ("unshare", "ip", "iptables", "ip6tables")))


def table(found):
    """Return the table in Markdown."""
    columns = [column for column in COLUMNS if column in found]
    lines = [f"| operation | by | {' | '.join(columns)} |", f"|---|---|{'---|' * len(columns)}"]
    for act in ACTS:
        cells = [f"**{STOPPED}**" if found[column][act.name, act.by] == STOPPED else THROUGH for column in columns]
        lines.append(f"| {act.name} | {act.by} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _asked(start, which):
    with tempfile.TemporaryDirectory(prefix="dl", dir=places.SHORT) as folder:  # short, for the names of sockets
        Path(folder, "tmp").mkdir()  # a subject may use all of the temp directory, so the ground is not in it
        path = f"{HERE.parents[2]}:{HERE.parents[2] / 'src'}"
        environ = {**os.environ, "PYTHONPATH": path, "TMPDIR": f"{folder}/tmp"}
        done = subprocess.run(
            [*start, "-m", "tests.docs.layers", which, folder],
            env=environ,
            cwd=HERE.parents[2],
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
    if done.returncode:
        raise AssertionError(f"the acts could not be tried: {done.stderr[-2000:]}")
    return json.loads(done.stdout)


class Ground:
    """What the acts are about: files outside, listeners that nobody declared, a process to send a signal to."""

    def __init__(self, folder):
        from democrai_sandbox.kernel import _native

        self.native = _native
        self.own, self.outside = f"{folder}/own", f"{folder}/outside"
        for place in (self.own, self.outside, f"{folder}/data", f"{folder}/state"):
            Path(place).mkdir(mode=0o700)
        self.secret, self.victim = f"{self.outside}/secret", f"{self.outside}/victim"
        Path(self.secret).write_text("secret")
        self.library, self.queue = f"{self.own}/library", f"/layers-{os.getpid()}"
        Path(self.library).write_bytes(bytes(4096))
        self.unix, self.abstract = f"{self.outside}/socket", f"layers-{os.getpid()}"
        self.outsider = os.getppid()
        self._listeners = (_listener(), _listener(), _listener("127.0.0.2"))
        self.declared, self.undeclared = (each.getsockname() for each in self._listeners[:2])
        port = self.declared[1]
        self._listeners[2].close()
        self._other = _listener("127.0.0.2", port)
        self.same_port = ("127.0.0.2", port)
        self._datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._datagrams.bind(("127.0.0.1", 0))
        self._datagrams.settimeout(0.3)
        self.datagrams = self._datagrams.getsockname()
        self._unix = [socket.socket(socket.AF_UNIX) for _ in range(2)]
        for link, name in zip(self._unix, (self.unix, f"\0{self.abstract}"), strict=True):
            link.bind(name)
            link.listen(64)

    def rules(self):
        """What the subject may use: one folder, one URL."""
        host, port = self.declared
        return [
            {"resource_type": "filesystem", "operation": ["read", "create", "modify", "delete"], "target": self.own},
            {"resource_type": "network", "operation": "receive", "target": f"http://{host}:{port}/open"},
        ]

    def ready(self):
        """Put back what an act before has used up."""
        Path(self.victim).write_text("here")
        number = ctypes.CDLL(None).mq_open(self.queue.encode(), os.O_RDWR | os.O_CREAT, 0o600, None)
        os.close(number)

    def clear(self):
        """Leave nothing behind that is in no folder."""
        ctypes.CDLL(None).mq_unlink(self.queue.encode())

    def arrived(self, act):
        """Tell whether what was sent has got there; acts that send nothing have nothing to show."""
        if "path" in act.name and "declared" in act.name:
            return self._asked_for_secret()
        if "datagram" in act.name:
            try:
                return bool(self._datagrams.recv(16))
            except TimeoutError:
                return False
        return True

    def _asked_for_secret(self):
        self._listeners[0].settimeout(0.3)
        while True:
            try:
                link, _ = self._listeners[0].accept()
            except TimeoutError:
                return False
            with link:
                link.settimeout(0.3)
                try:
                    if b"/secret" in link.recv(4096):
                        return True
                except (TimeoutError, ConnectionError):
                    continue


def _listener(host="127.0.0.1", port=0):
    link = socket.socket()
    link.bind((host, port))
    link.listen(64)
    return link


def under(layer, ground):
    """Put this process under a layer, for good; return how an act is run there."""
    if layer in {LANDLOCK, SECCOMP, ALL}:
        _confine(ground, landlock=layer != SECCOMP, seccomp=layer != LANDLOCK, packet_filter=layer == ALL)
    if layer not in {GUARD, ALL}:
        return lambda act: act.act(ground)

    def guarded(act):
        from democrai_sandbox import process_guard_context

        # Whoever has native code has it whatever the guard says; that it is let in is part of the act.
        imports = ["ctypes"] if act.by == NATIVE else []
        guard = process_guard_context(subject="layers", access=ground.rules(), allowed_imports=imports)
        return guard.run(act.act, ground)

    return guarded


def _confine(ground, *, landlock, seccomp, packet_filter):
    """Do what the spawn server does to a worker, and what a worker does to itself then."""
    from democrai_sandbox.kernel.landlock.raw_ruleset import build
    from democrai_sandbox.kernel.seccomp import filters
    from democrai_sandbox.kernel.spawn.confinement import confinement_of, enforcement_of
    from democrai_sandbox.policy import parse_access
    from democrai_sandbox.runtime.confinement.process_paths import runtime_paths

    native, runtime = ground.native, runtime_paths()
    wanted = confinement_of(
        parse_access(ground.rules(), base="/"), runtime_read=runtime.read, runtime_execute=runtime.execute
    )
    root = os.geteuid() == 0
    enforced = enforcement_of(wanted, native.landlock_abi(), root=root, packet_filter=packet_filter)
    if landlock:
        plan = enforced.plan
        ruleset, _ = build(native, plan.fs, plan.net, plan.scoped, plan.paths, plan.ports)
        native.landlock_add_own_proc(ruleset, plan.own_proc & plan.fs, plan.whole_proc)
        native.landlock_restrict(ruleset)
    if seccomp:
        for program in (enforced.filter, filters.program(filters.NO_EXEC)):
            if native.seccomp_install(program, 0):
                raise AssertionError("the filter was not installed")


def outcome(ground, layer, act):
    """Try an act under a layer, in a fork; its process may be killed for it."""
    from democrai_sandbox.errors import SandboxDenied

    ground.ready()
    heard, told = os.pipe()
    child = os.fork()
    if child == 0:
        said = b"?"
        try:
            run = under(layer, ground)
            try:
                said = b"stopped" if run(act) else b"through"
            except (SandboxDenied, OSError, subprocess.SubprocessError) as error:
                said = f"stopped {error!r}".encode()
        except BaseException as error:
            said = f"broken {error!r}".encode()
        finally:
            os.write(told, said)
            os._exit(0)
    os.close(told)
    with open(heard, "rb") as text:
        said = text.read().decode()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if said.startswith("broken"):
        raise AssertionError(f"{layer}: {act.name} ({act.by}): {said}")
    if status < 0 or said.startswith("stopped"):
        return STOPPED
    # A program that took the place of the process says nothing, and ends well.
    return THROUGH if ground.arrived(act) else STOPPED


def main(which, folder):
    """Try everything that can be tried from one process, and print what came of it."""
    ground = Ground(folder)
    with ExitStack() as stack:
        stack.callback(ground.clear)
        layers = (NOTHING, LANDLOCK, SECCOMP, GUARD)  # the guard last: it is imported for its acts alone
        if which == "filtered":
            stack.callback(_held(ground, folder).stop)
            layers = (EGRESS, ALL)
        found = {}
        for layer in layers:
            prepare(layer)
            found[layer] = {f"{act.name}|{act.by}": outcome(ground, layer, act) for act in ACTS}
    print(json.dumps(found))


def prepare(layer):
    """Import once what every fork under a layer would import for itself."""
    names = ["errors"]
    if layer in {LANDLOCK, SECCOMP, ALL}:
        names += [
            "kernel.landlock.raw_ruleset",
            "kernel.seccomp",
            "kernel.spawn.confinement",
            "runtime.confinement.process_paths",
        ]
    if layer in {GUARD, ALL}:
        names.append("guard")
    for name in names:
        import_module(f"democrai_sandbox.{name}")


def _held(ground, folder):
    """Have the packet filter hold this process to what the subject declares."""
    from democrai_sandbox.kernel import os_settings
    from democrai_sandbox.kernel.application import ApplicationPlaces, Kernel
    from democrai_sandbox.kernel.egress import AllowlistBuilder
    from democrai_sandbox.kernel.egress.allowlist import SourceEntry

    host, port = ground.declared
    source = SimpleNamespace(name="layers", endpoints=lambda: [SourceEntry(f"http://{host}:{port}/open", "layers")])
    places = ApplicationPlaces(f"{folder}/data", f"{folder}/state")
    kernel = Kernel(os_settings({"enabled": True}), places, endpoints=AllowlistBuilder([source]))
    kernel.prepare()
    kernel.confine()
    return kernel


if __name__ == "__main__":
    if sys.argv[1:]:
        main(*sys.argv[1:])
    else:
        sys.stdout.write(table(measured()))
