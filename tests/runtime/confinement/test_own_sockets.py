"""Local sockets in the folders of a confined subject: the supervisor connects them, and no others."""

from __future__ import annotations

import os
import socket

import pytest

LAB = os.path.join(os.path.dirname(__file__), "confined_host.py")

# The guard does not see native code: these are the calls that it would make.
MODULE = """
import asyncio, ctypes, errno, os, socket, struct, threading
from democrai_sandbox import sdk

libc = ctypes.CDLL(None, use_errno=True)

def failed(result):
    return "ok" if result >= 0 else errno.errorcode[ctypes.get_errno()]

def native(path, kind=socket.SOCK_STREAM, length=None, family=socket.AF_UNIX):
    number = libc.socket(socket.AF_UNIX, kind, 0)
    if number < 0:
        return failed(number)
    address = struct.pack("=H", family) + (path.encode() if isinstance(path, str) else path) + bytes(1)
    try:
        return failed(libc.connect(number, address, len(address) if length is None else length))
    finally:
        libc.close(number)

def serve(path, kind=socket.SOCK_STREAM):
    server = socket.socket(socket.AF_UNIX, kind)
    server.bind(path)
    server.listen()
    return server

@sdk.action("echo")
async def echo():
    path = str(sdk.data_dir() / "server")

    async def answer(reader, writer):
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(answer, path):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"hello\\n")
        said = await reader.readline()
        writer.close()
        return said.decode()

@sdk.action("kinds")
def kinds():
    folder = sdk.data_dir()
    os.chdir(folder)
    servers = [serve(str(folder / "stream")), serve(str(folder / "packets"), socket.SOCK_SEQPACKET)]
    told = {
        "stream": native(str(folder / "stream")),
        "packets": native(str(folder / "packets"), socket.SOCK_SEQPACKET),
        "relative": native("stream"),
        "other type": native(str(folder / "packets")),
        "datagram": native(str(folder / "stream"), socket.SOCK_DGRAM),
        "raw": native(str(folder / "stream"), socket.SOCK_RAW),
        "missing": native(str(folder / "nothing")),
        "file": (folder / "file").write_text("") or native(str(folder / "file")),
        "abstract": native(bytes(1) + b"name"),
        "unspecified": native(str(folder / "stream"), family=socket.AF_UNSPEC),
        "internet": native(b"00000000000000", family=socket.AF_INET),
        "short": native(str(folder / "stream"), length=1),
        "long": native(str(folder / "stream"), length=4096),
        "no descriptor": failed(libc.connect(999, b"", 3)),
        "no memory": failed(libc.connect(servers[0].fileno(), ctypes.c_void_p(8), 20)),
    }
    for server in servers:
        server.close()
    return told

@sdk.action("threads")
def threads():
    path, found = str(sdk.data_dir() / "threads"), []
    server = serve(path)
    workers = [threading.Thread(target=lambda: found.append(native(path))) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    server.close()
    return found

@sdk.action("full")
def full():
    path = str(sdk.data_dir() / "full")
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(path)
    server.listen(0)
    held, told = [], []
    for _ in range(3):
        client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        client.setblocking(False)
        try:
            client.connect(path)
            told.append("ok")
        except OSError as error:
            told.append(errno.errorcode[error.errno])
        held.append(client)
    return [*told, native(path)]

@sdk.action("reaches")
def reaches(path): return native(path)

@sdk.action("links")
def links(path):
    link = str(sdk.data_dir() / "link")
    libc.symlink(path.encode(), link.encode())
    return native(link)

@sdk.action("descriptors")
def descriptors(path):
    number = libc.open(path.encode(), os.O_PATH)
    return native(f"/proc/self/fd/{number}")

@sdk.action("guarded")
def guarded(path):
    client = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    client.connect(path)

@sdk.action("child")
async def child(code, names):
    done = await sdk.tasks.run_subprocess(["python3", "-I", "-S", "-c", code, *names])
    return [done.returncode, done.text]
"""

CHILD = """
import socket, sys
for path in sys.argv[1:]:
    try:
        socket.socket(socket.AF_UNIX).connect(path)
        print("ok")
    except OSError as error:
        print(type(error).__name__)
"""


def connected(world):
    lab = (parts := world.load(LAB))["Lab"](world)
    house, entry = lab.house, parts["entry"]
    outside = os.path.join(house.base, "s")
    server = socket.socket(socket.AF_UNIX)
    server.bind(outside)
    server.listen()
    listener = socket.create_server(("127.0.0.1", 0))
    rule = entry("connect", f"127.0.0.1:{listener.getsockname()[1]}")
    house.extension("demo", MODULE, allowed_imports=["ctypes"])
    house.extension("net", MODULE, access=[rule], allowed_imports=["ctypes"])
    own = os.path.join(house.base, "data", "modules", "demo")

    async def story():
        act = lambda name, **params: lab.action("demo", name, **params)
        told = {"echo": await act("echo"), "kinds": await act("kinds"), "threads": await act("threads")}
        told["full"] = await act("full")
        told["outside"] = [
            await act("reaches", path=outside),
            await act("links", path=outside),
            await act("reaches", path=f"{own}/../../../s"),
            await act("descriptors", path=outside),
        ]
        told["guarded"] = (await act("guarded", path=outside))[0]
        kept = socket.socket(socket.AF_UNIX)
        kept.bind(f"{own}/kept")
        kept.listen()
        told["child"] = await act("child", code=CHILD, names=[f"{own}/kept", outside])
        told["network"] = await lab.action("net", "reaches", path=outside)
        server.setblocking(False)
        try:
            server.accept()
            told["accepted"] = True
        except BlockingIOError:
            told["accepted"] = False
        return told

    return lab.serve(story, isolation={"module:demo": "process", "module:net": "process"})


@pytest.fixture(scope="module")
def found(shared_case):
    """Return what the calls of native code in a worker led to."""
    return shared_case.run(connected)


def test_a_server_in_the_data_folder_is_reached_in_a_confined_worker(found):
    assert found["echo"] == "HELLO\n"


def test_connected_sockets_reach_their_own_folder_and_other_kinds_do_not(found):
    assert found["kinds"] == {
        "stream": "ok",
        "packets": "ok",
        "relative": "ok",
        "other type": "EPROTOTYPE",
        "datagram": "EPERM",
        "raw": "EPERM",
        "missing": "ENOENT",
        "file": "ECONNREFUSED",
        "abstract": "EPERM",
        "unspecified": "EINVAL",
        "internet": "EINVAL",
        "short": "EINVAL",
        "long": "EINVAL",
        "no descriptor": "EBADF",
        "no memory": "EFAULT",
    }


def test_threads_connect_at_the_same_time(found):
    assert found["threads"] == ["ok"] * 8


def test_a_busy_server_is_reported(found):
    """At once to a socket that does not block, and to another one after the longest wait of the supervisor."""
    assert found["full"] == ["ok", "EAGAIN", "EAGAIN", "EAGAIN"]


def test_no_path_leads_to_a_socket_outside(found):
    assert found["outside"] == ["EACCES"] * 4
    assert not found["accepted"]


def test_a_child_program_reaches_the_same_sockets(found):
    assert found["child"] == [0, "ok\nPermissionError\n"]


def test_the_guard_denies_a_socket_outside_with_its_own_error(found):
    assert found["guarded"] == "NetworkDenied"


def test_with_network_rules_no_local_socket_is_made_without_a_rule(found):
    assert found["network"] == "EPERM"
