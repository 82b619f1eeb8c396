"""A confined application: it starts processes through the spawn server, and its allowlist follows changes."""

from __future__ import annotations

import os
import shutil
import tempfile

import pytest

from tests.kernel.netlab import needs_netlab
from tests.services import places

LAB = os.path.join(os.path.dirname(__file__), "confined_host.py")
TESTS = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PACKAGES = os.path.join(os.path.dirname(os.path.dirname(__file__)), "installs", "packages.py")
INSTALLING = os.path.join(os.path.dirname(PACKAGES), "hosting.py")

MODULE = """
import os
from democrai_sandbox import sdk

@sdk.action("sh")
async def sh(script):
    done = await sdk.tasks.run_subprocess(["sh", "-c", script])
    return [done.returncode, done.text.split()]

@sdk.action("pid")
def pid(): return os.getpid()
"""
ENGINE = """
from democrai_sandbox import sdk
import tiny

@sdk.method("version")
def version(): return tiny.VERSION
"""


def confined(world):
    from democrai_sandbox.kernel import os_settings
    from democrai_sandbox.kernel.application import ApplicationPlaces, Kernel

    for name in ("k-data", "k-state"):
        os.makedirs(f"{world.base}/{name}")
    places = ApplicationPlaces(f"{world.base}/k-data", f"{world.base}/k-state", write=(world.base,), read=(TESTS,))
    kernel = Kernel(os_settings(world.args[0]), places)
    kernel.prepare()
    status = kernel.confine()
    lab = (parts := world.load(LAB))["Lab"](world, kernel)
    house, told = lab.house, parts["told"]
    secret = house.file("secret/file")
    house.extension("demo", MODULE)
    house.extension("apart", MODULE)
    folder = house.extension("built", ENGINE, kind="engine", install={"requirements": ["./tiny"]})
    world.load(PACKAGES)["source"](os.path.join(folder, "tiny"), "tiny")
    if world.args[1]:
        world.load(INSTALLING)["know_pip"]()

    async def story():
        engines = house.runtime.engines
        installed = await told(engines.install("built"))
        return {
            "states": {control.name: control.state.value for control in status.controls},
            "child": await lab.action("demo", "sh", script=f"cat {secret} || echo shut"),
            "worker": await lab.action("apart", "pid") != os.getpid(),
            "its child": await lab.action("apart", "sh", script=f"cat {secret} || echo shut"),
            "installed": getattr(installed, "packages", installed),
            "engine": await told(engines.call("built", "version")),
            "itself": _runs("/bin/true"),
        }

    return lab.serve(story, isolation={"module:apart": "process"})


def unprepared(world):
    from democrai_sandbox.kernel import os_settings
    from democrai_sandbox.kernel.application import ApplicationPlaces, Kernel

    kernel = Kernel(os_settings({"seccomp": {"enabled": True}}), ApplicationPlaces(world.base, world.base))
    lab = world.load(LAB)["Lab"](world, kernel)
    try:
        lab.serve(None)
    except Exception as error:
        return [type(error).__name__, str(error)]
    finally:
        lab.house.web.stop()
    return []


def test_a_runtime_is_not_made_with_a_kernel_layer_that_was_not_prepared(case):
    """It would start everything unconfined."""
    kind, text = case.run(unprepared)
    assert kind == "KernelLayerError"
    assert "prepare()" in text


def _runs(program):
    import subprocess

    try:
        return subprocess.run([program], timeout=20, check=False).returncode
    except OSError as error:
        return type(error).__name__


@pytest.mark.parametrize("landlock", [False, True])
def test_with_seccomp_on_everything_is_started_by_the_spawn_server(equipped_case, landlock):
    """Also when ``sandbox.os.enabled`` is off: the application itself cannot start programs any more."""
    section = {"seccomp": {"enabled": True}, "landlock": {"enabled": landlock}}
    knows_pip = not landlock  # with more confinement, the process that reads pip's configuration is started as well
    told = equipped_case.run(confined, section, knows_pip, PIP_NO_INDEX="1", PIP_CONFIG_FILE=os.devnull)
    states = told.pop("states")
    assert states["seccomp"] == states["spawn_server"] == "active", states
    assert states["landlock"] == ("active" if landlock else "off")
    assert told == {
        "child": [0, ["shut"]],
        "worker": True,
        "its child": [0, ["shut"]],
        "installed": ["tiny==1.0"],
        "engine": "1.0",
        "itself": -31,
    }


NETWORK = """
import ctypes, errno, os, socket, struct
from democrai_sandbox import sdk

TRY = '''
import socket, sys
def attempt(kind, port):
    try:
        with socket.socket(socket.AF_INET, kind) as one:
            one.settimeout(5)
            one.connect(("127.0.0.1", port))
            one.send(b"x")
            return one.recv(1).decode()
    except OSError as error:
        return type(error).__name__
for word in sys.argv[1:]:
    kind, port = word.split(":")
    print(attempt({"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}[kind], int(port)))
'''

@sdk.action("child")
async def child(places):
    done = await sdk.tasks.run_subprocess(["python3", "-I", "-S", "-c", TRY, *places])
    return done.text.split() or done.stderr.decode()

@sdk.action("connects")
def connects(port, host="127.0.0.1"):
    with socket.create_connection((host, port), 5) as one:
        one.send(b"x")
        return one.recv(1).decode()

@sdk.action("native")
def native(kind, port):
    libc = ctypes.CDLL(None, use_errno=True)
    number = libc.socket(socket.AF_INET, {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}[kind], 0)
    address = struct.pack("=HHI8x", socket.AF_INET, socket.htons(port), socket.htonl(0x7F000001))
    failed = libc.connect(number, address, len(address)) or libc.send(number, b"x", 1, 0) < 0
    code = ctypes.get_errno()
    libc.close(number)
    return errno.errorcode[code] if failed else "ok"
"""


def networked(world):
    import asyncio
    import ctypes
    import socket
    import subprocess
    import threading

    if ctypes.CDLL(None, use_errno=True).unshare(0x40000000):
        raise OSError(ctypes.get_errno(), "unshare")
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True, timeout=20)

    from democrai_sandbox.kernel import os_settings
    from democrai_sandbox.kernel.application import ApplicationPlaces, Kernel

    os.makedirs(f"{world.base}/k-data")
    state = world.args[0]
    kernel = Kernel(
        os_settings({"enabled": True, "seccomp": {"enabled": True}, "landlock": {"enabled": True}}),
        ApplicationPlaces(f"{world.base}/k-data", state, write=(world.base,), read=(TESTS,)),
    )
    kernel.prepare()
    status = kernel.confine()

    def echo(protocol):
        kind = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}[protocol]
        server = socket.socket(socket.AF_INET, kind)
        server.bind(("127.0.0.1", 0))

        def answer():
            while True:
                if protocol == "udp":
                    _, peer = server.recvfrom(1)
                    server.sendto(b"!", peer)
                else:
                    peer, _ = server.accept()
                    with peer:
                        if peer.recv(1):
                            peer.send(b"!")

        if protocol == "tcp":
            server.listen()
        threading.Thread(target=answer, daemon=True).start()
        return server.getsockname()[1]

    ports = [echo("tcp"), echo("tcp"), echo("udp")]
    lab = (parts := world.load(LAB))["Lab"](world, kernel)
    house, entry = lab.house, parts["entry"]
    imports = {"allowed_imports": ["ctypes"]}
    house.extension("demo", NETWORK, access=[entry("connect", f"127.0.0.1:{ports[0]}")], **imports)
    house.extension("apart", NETWORK, access=[entry("connect", f"127.0.0.1:{ports[0]}")], **imports)
    house.extension("wide", NETWORK, access=[entry("connect", "127.0.0.0/8")], **imports)
    house.extension("other", NETWORK, access=[entry("connect", f"127.0.0.1:{ports[1]}")], **imports)
    places = [f"tcp:{ports[0]}", f"tcp:{ports[1]}", f"udp:{ports[2]}"]

    async def approved():
        house.decide("approval", "module:demo", "network", "connect", f"127.0.0.1:{ports[2]}")
        for _ in range(600):
            told = await lab.action("demo", "child", places=places)
            if told[2] == "!":
                return told
            await asyncio.sleep(0.05)
        return told

    async def story():
        told = {"states": {control.name: control.state.value for control in status.controls}}
        told["child"] = await lab.action("demo", "child", places=places)
        told["approved"] = await approved()
        told["in process"] = await lab.action("demo", "connects", port=ports[0])
        told["worker"] = await lab.action("apart", "connects", port=ports[0])
        told["native open"] = await lab.action("apart", "native", kind="tcp", port=ports[0])
        told["native shut"] = await lab.action("apart", "native", kind="tcp", port=ports[1])
        told["native udp"] = await lab.action("apart", "native", kind="udp", port=ports[2])
        told["a range, native"] = await lab.action("wide", "native", kind="udp", port=ports[2] + 1)
        told["a range"] = await lab.action("wide", "connects", port=ports[1])
        unenforced = house.runtime.confinement.unenforced
        told["said"] = [bool(unenforced[f"module:{name}"]) for name in ("demo", "apart", "wide")]
        return told

    told = lab.serve(story, isolation={f"module:{name}": "process" for name in ("apart", "wide")})
    told["left"] = os.listdir(state)
    return told


@needs_netlab
def test_children_and_workers_get_out_of_the_machine_only_to_their_own_endpoints(case):
    """With a packet filter: datagrams too, approvals within a moment, and no endpoints of other subjects."""
    assert shutil.which("ip")
    with tempfile.TemporaryDirectory(dir=places.SHORT) as state:  # the address of a socket has to be short
        told = case.run(networked, state)
    assert set(told.pop("states").values()) == {"active"}
    assert told["child"] == ["!", "PermissionError", "PermissionError"]
    assert told["approved"] == ["!", "PermissionError", "!"]
    assert told["in process"] == told["worker"] == "!"
    assert told["native open"] == "ok"
    assert told["native shut"] == "EACCES"
    assert told["native udp"] in ("EPERM", "EACCES")
    assert told["a range"] == "!"
    assert told["a range, native"] == "EPERM"
    assert told["said"] == [False, False, True]
    assert told["left"] == []
