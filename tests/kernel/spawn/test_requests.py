"""Malformed input on the link: the server survives, and starts only programs that the application requested."""

from __future__ import annotations

import array
import json
import os
import resource
import socket
import tempfile
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from democrai_sandbox.errors import SpawnFailed
from democrai_sandbox.kernel import _native
from democrai_sandbox.kernel.spawn import LandlockPlan, client, protocol
from democrai_sandbox.kernel.spawn.children import MARKING
from tests.kernel import forked_programs
from tests.kernel.spawn.programs import PATIENCE, SHELL, descriptors, needs_root_to_look, order, shell, until
from tests.services.golden import sentence
from tests.services.rows import rows

_GOOD = client.SpawnOrder(SHELL, ("sh", "-c", "true"), {}, "/", keep_caps=0)


def _send(server, packet, descriptors=()):
    """Send a raw packet with a lifeline; return the answer."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(PATIENCE)
    with ours:
        with theirs:
            rights = array.array("i", [theirs.fileno(), *descriptors])
            server._link.sendmsg([packet], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        answer = ours.recv(65536)
        return protocol.parsed_answer(answer) if answer else None


def _body(*, env=(), stdio=(-1, -1, -1), pass_fds=(), **changes):
    """An order with changes; descriptors are indexes, and `pass_fds` are pairs of an index and a number."""
    indexes = {number: index for index, number in pass_fds}
    streams = dict(zip(("stdin", "stdout", "stderr"), stdio, strict=True))
    environment = dict(text.split("=", 1) for text in env)
    order_ = replace(_GOOD, environment=environment, pass_fds=tuple(indexes), **streams, **changes)
    return protocol.packed_order(order_, lambda number: indexes.get(number, number))


def _plan(*, fs=1, net=0, scoped=0, paths=(), ports=(), own_proc=0, metadata=()):
    return LandlockPlan(fs, net, scoped, paths, ports, own_proc, metadata=metadata)


def _numbers(**changes):
    """A valid order with changed numbers, which the application's code could not write."""
    body = _body()
    end = 9 + 8 * len(protocol.NUMBERS)
    numbers = array.array("q", body[9:end])
    for name, value in changes.items():
        numbers[protocol.NUMBERS.index(name)] = value
    return body[:9] + numbers.tobytes() + body[end:]


def test_the_request_that_the_others_are_made_of_is_a_good_one(server):
    assert _send(server, _body())["ok"]


@rows(
    "packet",
    [
        b"",
        b"J",
        b"M",
        b"S",
        b"X" * 100,
        b"J" + b"[" * 20_000,
        b"J\xff\xfe",
        b"Jnull",
        b"J{}",
        b'J{"action": 1}',
        b'J{"action": "unknown"}',
        b'J{"action": "spawn"}',
        b'J{"action": "baseline"}',
        b'J{"action": "baseline", "plan": [1, 2]}',
        b'J{"action": "baseline", "plan": [1, 0, 0, 5, [], 0]}',
        b'J{"action": "baseline", "plan": [1, 0, 0, [["relative", 1]], [], 0]}',
        b'J{"action": "baseline", "plan": ["1", 0, 0, [], [], 0]}',
        b'J{"action": "baseline", "plan": [true, 0, 0, [], [], 0]}',
        b'J{"action": "baseline", "plan": [-1, 0, 0, [], [], 0]}',
        b"S" + b"\xff" * 400,
        b"S" + b"\0" * 400,
        _body()[:40],
        _body()[:-1] + b"\0\0",
        _body(argv=[]),
        _body(program="sh"),
        _body(program=""),
        _body(folder=""),
        _body(folder="here"),
        _body(stdio=[0, -1, -1]),
        _body(stdio=[-2, -1, -1]),
        _body(pass_fds=[(0, 5)]),
        _body(pass_fds=[(-1, 5)]),
        _body(plan=_plan(paths=[("relative", 1)])),
        _body(plan=_plan(paths=[("/", -1)])),
        _body(plan=_plan(ports=[(70000, 1)])),
        _body(plan=_plan(ports=[(1, -1)])),
        _body(plan=_plan(fs=-1)),
        _body(filter=b"1234"),
        _body(filter=bytes(8 * 4097)),
        _body(limits=[(99, 1)]),
        _body(limits=[(1, -1)]),
        _body(wall_seconds=-1),
        _body(wall_seconds=1e12),
        _body(cgroup=0),
        _body(umask=-2),
        _body(umask=0o1000),
        _body(keep_caps=-1),
        _numbers(argv=-1),
        _numbers(argv=1 << 40),
        _numbers(env=5),
        _numbers(paths=1, argv=2),
        _numbers(ports=1),
        _numbers(limits=-5),
        _numbers(has_plan=2),
        _numbers(wall=-1),
        _numbers(wall=1 << 60),
        _numbers(exact=2),
        _numbers(own_proc=-1),
        _numbers(has_plan=1, paths=1),
        _numbers(has_plan=1, ports=1),
        _numbers(has_plan=1, paths=-1),
        _numbers(has_plan=1, argv=2, paths=1),
        _numbers(has_plan=1, ports=1 << 62),
        _numbers(pass_fds=1 << 62),
        _body(pass_fds=[(0, number) for number in range(5, 305)]),
    ],
)
def test_a_bad_request_is_refused_in_words_and_starts_nothing(server, packet):
    before = server.stats()
    answer = _send(server, packet)
    assert answer["ok"] is False
    assert answer["error"].startswith("bad request")  # prefix of every such answer
    after = server.stats()
    assert after["started"] == before["started"]
    assert after["refused"] == before["refused"] + 1


def test_a_packet_that_is_too_large_is_refused(server):
    answer = _send(server, b"J" + b" " * 100_000)
    sentence("a large packet", answer["error"])


def test_a_request_without_a_way_to_answer_starts_nothing(server):
    before = server.stats()["started"]
    server._link.sendmsg([_body()])
    null = os.open("/dev/null", os.O_RDWR)
    server._link.sendmsg([_body()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [null]))])
    os.close(null)
    assert server.stats()["started"] == before


def test_a_body_that_could_change_or_block_is_refused(server, tmp_path):
    plain = os.open(tmp_path / "body", os.O_RDWR | os.O_CREAT)
    os.write(plain, _body())
    unsealed = os.memfd_create("body", os.MFD_ALLOW_SEALING)
    os.write(unsealed, _body())
    reader, writer = os.pipe()
    large = protocol.sealed(b" " * (protocol.LARGEST_BODY + 1))
    bodies = {"a file": plain, "a memory file that may change": unsealed, "a pipe": reader, "a large body": large}
    for name, descriptor in bodies.items():
        sentence(name, _send(server, protocol.IN_FILE, [descriptor])["error"])
    good = protocol.sealed(_body())
    assert _send(server, protocol.IN_FILE, [good])["ok"]
    for descriptor in (plain, unsealed, reader, writer, large, good):
        os.close(descriptor)


def test_a_flood_of_garbage_does_not_keep_the_server_from_working(server):
    for number in range(200):
        server._link.sendmsg([b"garbage %d" % number])
    assert shell(server, "echo fine").out == "fine\n"


@needs_root_to_look
def test_as_many_descriptors_as_a_packet_takes_leak_nothing(server):
    before = descriptors(server)
    null = os.open("/dev/null", os.O_RDWR)
    assert not _send(server, b"Jnull", [null] * 252)["ok"]
    os.close(null)
    until(lambda: descriptors(server) == before)


_STRANGER = """
import array, json, os, socket, sys
from democrai_sandbox.errors import SpawnFailed
from democrai_sandbox.kernel.spawn import SpawnServer, SpawnOrder
server = SpawnServer.start()
before = server.stats()
child = os.fork()
if child == 0:
    # By the client, which knows that it is in another process; and by hand, past the client.
    try:
        server.spawn(SpawnOrder("/bin/touch", ("touch", sys.argv[1]), {}, "/"))
    except SpawnFailed as error:
        assert "fork" in str(error)
    else:
        os._exit(1)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs.fileno()]))]
    server._link.sendmsg([bytes.fromhex(sys.argv[2])], rights)
    theirs.close()
    answer = json.loads(ours.recv(65536))
    os._exit(0 if answer["ok"] is False and str(os.getpid()) in answer["error"] else 2)
_, status = os.waitpid(child, 0)
assert status == 0, status
after = server.stats()
assert (after["started"], after["refused"]) == (0, before["refused"] + 1), after
server.stop()
assert not os.path.exists(sys.argv[1])
print("fine")
"""


def test_a_process_that_inherited_the_link_is_a_stranger(tmp_path):
    made = str(tmp_path / "made")
    packet = _body(argv=["touch", made], program="/usr/bin/touch").hex()
    done = forked_programs.run(_STRANGER, made, packet)
    assert done.stdout == "fine\n", done.stderr


def test_the_baseline_is_given_once(own_server):
    plan = LandlockPlan(1, 0, 0, [("/", 1)], [])
    assert own_server.baseline(plan) == ()
    with pytest.raises(SpawnFailed) as refused:
        own_server.baseline(plan)
    sentence("a second baseline", str(refused.value))


def test_a_server_that_cannot_be_started_is_a_typed_error():
    with pytest.raises(SpawnFailed, match="/nowhere/python"):
        client.SpawnServer.start(interpreter="/nowhere/python")
    with pytest.raises(SpawnFailed) as ended:
        client.SpawnServer.start(interpreter="/bin/false")
    assert ended.value.fix == client._RESTART


def test_a_server_that_stands_still_is_noticed():
    server = client.SpawnServer.start()
    os.kill(server.pid, 19)
    server._answer_within, server._patience = client._timeval(0.3), 0.6
    while server._spare:  # created earlier, with the usual timeout
        for end in server._spare.pop():
            end.close()
    with pytest.raises(SpawnFailed) as failed:
        server.spawn(order("/bin/true"))
    sentence("a stopped server", failed.value.what)
    os.kill(server.pid, 18)
    server.stop()


@needs_root_to_look
def test_the_server_knows_nothing_of_the_applications_environment_and_folder(monkeypatch):
    monkeypatch.setenv("A_SECRET", "x")
    server = client.SpawnServer.start()
    try:
        with open(f"/proc/{server.pid}/environ", "rb") as file:
            assert b"A_SECRET" not in file.read()
        assert os.readlink(f"/proc/{server.pid}/cwd") == "/"
    finally:
        server.stop()


def _carried_out(body, files=()):
    """Execute an order in this process: return the program's output, or the reason of the refusal."""
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    try:
        pid, pidfd = _native.spawn(body, list(files), [], null, (MARKING, 1), 0)
    except ValueError as error:
        return str(error)
    except OSError as error:
        return error.strerror
    finally:
        os.close(null)
    os.waitpid(pid, 0)
    os.close(pidfd)
    return "carried out"


@given(st.data())
def test_an_order_with_bytes_changed_is_either_read_or_refused(data):
    """The program does not exist, so a valid order fails at its last step."""
    order_ = _body(
        program="/nonexistent/for-sure/program",
        plan=_plan(paths=[("/usr", 1), ("/etc", 5)], ports=[(1, 2)], metadata=["/tmp"]),
        limits=[(7, 900)],
        pass_fds=[(0, 4)],
        env=["A=1"],
    )
    body = bytearray(order_)
    for _ in range(data.draw(st.integers(0, 6))):
        body[data.draw(st.integers(1, len(body) - 1))] = data.draw(st.integers(0, 255))
    with open("/dev/null", "rb") as file:
        files = [file.fileno()] * data.draw(st.integers(0, 3))
        assert _carried_out(bytes(body), files) != "carried out"
    with suppress(protocol.BadRequestError):
        plan = protocol.read_front(bytes(body)).plan
        assert plan is None or all(path.startswith("/") for path, _ in plan.paths)


_text = st.binary(min_size=1, max_size=20).filter(lambda value: b"\0" not in value)
_path = _text.map(lambda value: b"/" + value)


@given(
    st.none() | st.lists(st.tuples(_path.map(os.fsdecode), st.integers(0, 1 << 16)), max_size=4),
    st.lists(st.tuples(st.integers(0, 65535), st.integers(0, 1 << 16)), max_size=3),
    st.lists(st.tuples(st.integers(0, 15), st.integers(0, 1 << 60)), max_size=3),
    st.none() | st.integers(1, 10**6),
    st.booleans(),
    st.integers(0, 19),
    st.lists(_path.map(os.fsdecode), max_size=3).map(tuple),
)
def test_a_plan_is_read_as_it_was_written(paths, ports, limits, wall, fork, nice, metadata):
    plan = None
    if paths is not None:
        plan = _plan(fs=7, net=3, scoped=1, paths=paths, ports=ports, own_proc=4, metadata=metadata)
    fields = {"plan": plan, "limits": limits, "wall_seconds": wall, "fork": fork, "nice": nice}
    body = _body(**fields, env=["A=1", "B=2"], filter=bytes(16))
    processes = min((most for number, most in limits if number == resource.RLIMIT_NPROC), default=None)
    assert protocol.read_front(body) == (wall, plan, fork, nice, processes)


@given(
    st.lists(_text.map(os.fsdecode), max_size=4),
    st.lists(
        _text.map(lambda value: os.fsdecode(b"N" + value.replace(b"=", b"") + b"=" + value)),
        max_size=4,
        unique_by=lambda text: text.partition("=")[0],
    ),
    st.lists(st.tuples(st.just("/usr"), st.integers(0, 1 << 16)), max_size=3),
)
def test_texts_come_to_the_program_as_they_were_written(words, env, paths):
    """Arguments, and the environment in its order, independent of the following data."""
    for argv, expected in ((["printf", r"%s\0", *words], words or [""]), (["env", "-0"], env)):
        plan = _plan(paths=paths)
        body = _body(argv=argv, program=f"/usr/bin/{argv[0]}", env=env, plan=plan, stdio=[-1, 0, -1])
        with tempfile.TemporaryFile() as file:
            assert _carried_out(body, [file.fileno()]) == "carried out"
            written = os.pread(file.fileno(), 65536, 0)
        assert written == b"".join(os.fsencode(f"{one}\0") for one in expected)


@given(st.binary(max_size=200))
def test_bytes_are_either_a_request_or_refused(body):
    for read in (protocol.parsed_request, protocol.read_front):
        try:
            read(body)
        except protocol.BadRequestError:
            pass
