"""Bus of one host: dying nodes, vanishing files and foreign connections."""

from __future__ import annotations

import fcntl
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from contextlib import closing

import pytest

from democrai_sandbox.access.events import open_bus
from democrai_sandbox.access.events.bus import LONGEST_MESSAGE, Event
from democrai_sandbox.access.events.ipc import HubFolder, to_frame
from democrai_sandbox.errors import InvalidInputError
from tests.access.events.forged import forged_events
from tests.access.events.nodes import PATIENCE, Heard, eventually
from tests.services import places
from tests.services.rows import rows

pytestmark = pytest.mark.once

NOBODY = 65534
# Python 3.12 and later warn about forking with threads. The test shows that it does no harm.
forks = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")


def hub_of(*nodes):
    return [node for node in nodes if node.ask("is_hub")]


def node_in_here(ipc):
    bus, heard = ipc.open(), Heard()
    bus.start(heard)
    assert heard.has_gaps(1)
    assert eventually(lambda: bus.connected)
    return bus, heard


def socket_of(ipc):
    return os.path.join(ipc.settings["folder"], f"{ipc.settings['channel']}.sock")


def lock_of(ipc):
    return os.path.join(ipc.settings["folder"], f"{ipc.settings['channel']}.lock")


def stranger(ipc):
    """Connection of a client that does not use our code."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    link.settimeout(PATIENCE)
    link.connect(socket_of(ipc))
    return link


def is_let_go(link):
    """Return whether the hub closes the connection."""
    try:
        while link.recv(65536):
            pass
    except ConnectionResetError:
        pass
    return True


def test_processes_that_start_together_have_one_hub(ipc):
    """Processes that start together have one hub and receive each other's events."""
    nodes = [ipc.process() for _ in range(5)]
    for node in nodes:
        assert node.heard.has_gaps(1)
    assert len(hub_of(*nodes)) == 1
    for generation, node in enumerate(nodes, start=1):
        node.ask("publish", generation)
        assert all(other is node or other.heard.reaches(generation) for other in nodes)
    assert [node.end() for node in nodes] == [0] * 5
    assert all(node.answers == {"threads": 1} for node in nodes)


def test_when_the_hub_is_killed_the_others_go_on(ipc):
    """Each time the others read what they missed, and receive each other's events again."""
    nodes = [ipc.process() for _ in range(4)]
    for node in nodes:
        assert node.heard.has_gaps(1)
    for generation in (10, 20):
        (hub,) = hub_of(*nodes)
        nodes.remove(hub)
        gaps = [node.heard.gaps for node in nodes]
        hub.kill()
        assert all(node.heard.has_gaps(gap + 1) for node, gap in zip(nodes, gaps))
        nodes[0].ask("publish", generation)
        assert all(node.heard.reaches(generation) for node in nodes[1:])


def test_what_is_told_while_the_hub_dies_is_not_lost(ipc):
    """It is sent to the next hub, or nodes that missed it are notified of a gap afterwards."""
    hub = ipc.process()
    assert hub.heard.has_gaps(1)
    (bus, _), (_, heard) = node_in_here(ipc), node_in_here(ipc)
    hub.process.send_signal(signal.SIGSTOP)
    assert eventually(hub.is_stopped)
    bus.publish(5)
    time.sleep(0.05)
    assert heard.generations == []
    gaps = heard.gaps
    hub.kill()
    assert heard.learns(5, gaps=gaps)
    bus.publish(6)
    assert heard.reaches(6)


def test_when_the_hub_stops_another_takes_over(ipc):
    """The files of the first hub do not block the next one."""
    (first, _), (second, _), (_, heard) = node_in_here(ipc), node_in_here(ipc), node_in_here(ipc)
    assert first._hub is not None
    first.stop()
    assert heard.has_gaps(2)
    assert eventually(lambda: second.connected)
    second.publish(1)
    assert heard.reaches(1)


def test_a_child_of_the_hub_does_not_keep_the_others_waiting(ipc):
    """A forked child has neither the lock nor the connections: when the hub dies, another takes over."""
    hub = ipc.process()
    assert hub.heard.has_gaps(1)
    (bus, _), (_, heard) = node_in_here(ipc), node_in_here(ipc)
    child, answer = hub.ask("fork", 30)
    try:
        assert answer == "done"
        hub.kill()
        assert heard.has_gaps(2)
        assert eventually(lambda: bus.connected)
        bus.publish(1)
        assert heard.reaches(1)
        assert 999 not in heard.generations
    finally:
        os.kill(child, signal.SIGKILL)


def test_only_the_owner_can_reach_folder_lock_and_socket(ipc):
    """The umask does not matter."""
    before = os.umask(0)
    try:
        node_in_here(ipc)
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(os.stat(path).st_mode) for path in (ipc.settings["folder"], socket_of(ipc), lock_of(ipc))]
    assert modes == [0o700, 0o600, 0o600]


def test_a_folder_may_lie_deep(opened, tmp_path):
    """The folder may be deeper than the maximum length of a Unix socket address."""
    deep = opened("ipc", folder=str(tmp_path / ("d" * 100) / ("e" * 100)))
    (bus, _), (_, heard) = node_in_here(deep), node_in_here(deep)
    bus.publish(1)
    assert heard.reaches(1)


@pytest.mark.parametrize("vanishes", [[lock_of], [socket_of], [lock_of, socket_of]])
def test_files_that_vanish_are_made_again(ipc, vanishes):
    """The hub notices that new nodes cannot find it, and all reconnect, including a node that came in between."""
    (bus, _), (_, heard) = node_in_here(ipc), node_in_here(ipc)
    for path in vanishes:
        os.unlink(path(ipc))
    newcomer, newcomer_heard = ipc.open(), Heard()
    newcomer.start(newcomer_heard)
    assert newcomer_heard.has_gaps(1)
    assert heard.has_gaps(2)
    newcomer.publish(5)
    assert heard.reaches(5)
    bus.publish(6)
    assert newcomer_heard.reaches(6)


def test_a_lock_that_others_do_not_find_is_none(tmp_path, monkeypatch):
    """The lock file is removed between opening and locking, so the next node would lock another file."""
    tmp_path.chmod(0o700)
    take = fcntl.flock

    def slow(number, operation):
        os.unlink(tmp_path / "lock")
        take(number, operation)

    with closing(HubFolder.open(tmp_path)) as folder:
        monkeypatch.setattr(fcntl, "flock", slow)
        assert folder.lock("lock") is None
        monkeypatch.undo()
        os.close(folder.lock("lock"))


def test_a_folder_that_vanishes_is_made_again(ipc):
    """The same, with the whole folder removed."""
    (bus, _), (_, heard) = node_in_here(ipc), node_in_here(ipc)
    shutil.rmtree(ipc.settings["folder"])
    assert heard.has_gaps(2)
    assert eventually(lambda: bus.connected)
    bus.publish(1)
    assert heard.reaches(1)


def test_something_else_in_place_of_the_socket_is_replaced(ipc):
    """A file that a killed hub or another process of the owner left there is replaced."""
    os.mkdir(ipc.settings["folder"], 0o700)
    with open(socket_of(ipc), "w") as file:
        file.write("not a socket")
    (bus, _), (_, heard) = node_in_here(ipc), node_in_here(ipc)
    bus.publish(1)
    assert heard.reaches(1)


GARBAGE = {
    "nothing": b"",
    "zero length": b"\0\0\0\0",
    "too long": (LONGEST_MESSAGE + 1).to_bytes(4) + b"x",
    "huge": b"\xff\xff\xff\xff" + b"x" * 100,
    "http": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "no json": to_frame(b"hello there"),
    "no text": to_frame(b"\xff\xfe\x00\x01"),
    "a list": to_frame(b'[1, "node", 5]'),
    "deep": to_frame(b"[" * LONGEST_MESSAGE),
}


def test_a_sender_of_garbage_is_let_go(ipc):
    """Other connections are not affected."""
    (bus, _), (_, heard) = node_in_here(ipc), node_in_here(ipc)
    for number, (name, garbage) in enumerate(GARBAGE.items(), 1):
        with stranger(ipc) as link:
            link.sendall(garbage)
            if not garbage:
                link.shutdown(socket.SHUT_WR)
            assert is_let_go(link), name
        bus.publish(number)
        assert heard.reaches(number), name
        assert [generation for generation, _ in heard.told] == [None, *range(1, number + 1)], name


def test_pieces_of_a_message_are_put_together(ipc):
    """Messages arrive in any pieces, and an incomplete message does no harm."""
    _, heard = node_in_here(ipc)
    data = to_frame(Event("stranger", 7, ipc.settings["channel"]).encoded())
    with stranger(ipc) as whole, stranger(ipc) as never:
        never.sendall(data[:-1])
        for byte in data:
            whole.sendall(bytes([byte]))
        assert heard.reaches(7)


def test_forged_events_are_not_told(ipc):
    """Nodes ignore other versions, types and channels, and numbers beyond any database."""
    (bus, _), (_, heard) = node_in_here(ipc), node_in_here(ipc)
    with stranger(ipc) as link:
        for forged in forged_events(ipc.settings["channel"]):
            link.sendall(to_frame(forged))
        # A valid event after them shows that all of them were processed.
        link.sendall(to_frame(Event("stranger", 3, ipc.settings["channel"]).encoded()))
        assert heard.reaches(3)
    assert heard.generations == [3]
    bus.publish(4)
    assert heard.reaches(4)


def test_an_event_in_ones_own_name_is_not_told(ipc):
    """A node ignores events with its own id."""
    bus, heard = node_in_here(ipc)
    with stranger(ipc) as link:
        link.sendall(to_frame(Event(bus.node, 900, ipc.settings["channel"]).encoded()))
        link.sendall(to_frame(Event("stranger", 3, ipc.settings["channel"]).encoded()))
        assert heard.reaches(3)
    assert heard.generations == [3]


def test_a_node_that_does_not_read_is_let_go_and_slows_nobody(ipc):
    """Its unread data is bounded."""
    _, heard = node_in_here(ipc)
    channel, gaps = ipc.settings["channel"], heard.gaps
    with stranger(ipc) as deaf, stranger(ipc) as loud:
        last = 10_000
        for first in range(1, last, 100):
            loud.sendall(b"".join(to_frame(Event("loud", first + i, channel).encoded()) for i in range(100)))
        # On a busy machine the node may be too slow for the flood: it is disconnected, reconnects and reads the store.
        assert heard.learns(last, gaps=gaps)
        assert is_let_go(deaf)
    assert len(heard.generations) < last / 10, "a flood is told as a few events"


@pytest.fixture
def many_files():
    """Raise the limit of open files, usually 1024, for both ends of all connections."""
    given, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, max(given, 4096)), most))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (given, most))


@pytest.mark.usefixtures("many_files")
def test_a_hub_is_not_used_up_by_connections(ipc, caplog):
    """The number of connections is limited; more are refused, and the bus keeps working."""
    (bus, _), (_, heard) = node_in_here(ipc), node_in_here(ipc)
    links = []
    try:
        while True:
            link = stranger(ipc)
            links.append(link)
            if not link.recv(100):
                break
            assert len(links) <= 512
    finally:
        for link in links:
            link.close()
    assert [record.name for record in caplog.records] == ["democrai_sandbox.access.events.ipc"]
    bus.publish(1)
    assert heard.reaches(1)


# ---- other users


CONNECT = """
import socket, sys
link = socket.socket(socket.AF_UNIX)
link.settimeout(30)
link.connect(sys.argv[1])
print(link.recv(100))
"""

LISTEN = """
import socket, sys
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("listens", flush=True)
while True:
    link, _ = listener.accept()
    try:
        link.sendall(bytes.fromhex(sys.argv[2]))
    except OSError:
        pass
"""


def as_user(user, code, *arguments, **options):
    words = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "python3", "-c", code, *arguments]
    words[4] = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, **options)


@pytest.fixture
def open_to_all():
    """Folder that every user can enter, unlike pytest's. Requested before the buses in it."""
    folder = f"{places.SHORT}/events-{os.getpid()}-{time.monotonic_ns()}"
    os.mkdir(folder)
    os.chmod(folder, 0o777)
    yield folder
    shutil.rmtree(folder)


@as_root
def test_a_node_of_another_user_is_refused(open_to_all, opened, caplog):
    """A node of another user is refused even if folder and socket are opened to it."""
    ipc = opened("ipc", folder=f"{open_to_all}/events")
    (bus, _), (_, heard) = node_in_here(ipc), node_in_here(ipc)
    os.chmod(ipc.settings["folder"], 0o777)
    os.chmod(socket_of(ipc), 0o777)
    with as_user(NOBODY, CONNECT, socket_of(ipc)) as other:
        assert other.communicate(timeout=60)[0] == "b''\n"
    assert [record.name for record in caplog.records] == ["democrai_sandbox.access.events.ipc"]
    with as_user(0, CONNECT, socket_of(ipc)) as same:
        assert "hub" in same.communicate(timeout=60)[0]
    bus.publish(1)
    assert heard.reaches(1)


@as_root
def test_a_hub_of_another_user_is_not_believed(open_to_all, opened):
    """A node does not connect to a socket of another user, even in the right place: it replaces it."""
    ipc = opened("ipc", folder=f"{open_to_all}/events")
    os.mkdir(ipc.settings["folder"], 0o700)
    hello = to_frame(b'{"v":1,"hub":true}') + to_frame(Event("x", 900, ipc.settings["channel"]).encoded())
    place = f"{open_to_all}/theirs"
    with as_user(NOBODY, LISTEN, place, hello.hex()) as other:
        try:
            assert other.stdout.readline() == "listens\n"
            os.rename(place, socket_of(ipc))
            bus, heard = ipc.open(), Heard()
            bus.start(heard)
            assert heard.has_gaps(1)
            assert os.stat(socket_of(ipc)).st_uid == 0
            time.sleep(0.1)
            assert heard.generations == []
            assert heard.gaps == 1
        finally:
            other.kill()


@forks
@as_root
def test_root_joins_the_bus_of_a_user_but_does_not_run_it(open_to_all, opened):
    """Root's files would lock out the user's nodes."""
    folder = f"{open_to_all}/events"
    os.mkdir(folder, 0o700)
    os.chown(folder, NOBODY, NOBODY)
    ipc = opened("ipc", folder=folder)
    bus, heard = ipc.open(), Heard()
    bus.start(heard)
    time.sleep(0.2)
    assert not bus.connected
    assert os.listdir(folder) == []
    child = os.fork()
    if child == 0:
        try:
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            users = open_bus("ipc", **ipc.settings)
            users_heard = Heard()
            users.start(users_heard)
            good = users_heard.reaches(1)
            users.publish(2)
            time.sleep(0.5)
            users.stop()
            os._exit(0 if good else 2)
        finally:
            os._exit(1)
    try:
        assert heard.has_gaps(1)
        bus.publish(1)
        assert heard.reaches(2)
    finally:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@forks
@as_root
def test_the_folder_of_another_user_is_refused(open_to_all):
    """Only root may use the folder of another user."""
    folder = f"{open_to_all}/events"
    os.mkdir(folder, 0o700)
    child = os.fork()
    if child == 0:
        try:
            os.setresuid(NOBODY, NOBODY, NOBODY)
            open_bus("ipc", folder=folder)
        except InvalidInputError:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@rows("mode", [0o755, 0o770, 0o701, 0o777])
def test_a_folder_that_others_can_enter_is_refused(tmp_path, mode):
    """The error says how to fix it."""
    folder = tmp_path / "events"
    folder.mkdir(exist_ok=True)
    folder.chmod(mode)
    with pytest.raises(InvalidInputError, match="chmod 700") as refused:
        open_bus("ipc", folder=folder)
    assert refused.value.problems[0].pointer == "/folder"


def test_a_link_to_a_folder_is_refused(tmp_path):
    """Another user may have created the link."""
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(InvalidInputError) as refused:
        open_bus("ipc", folder=tmp_path / "link")
    assert refused.value.problems[0].pointer == "/folder"


def test_a_folder_that_is_opened_to_others_later_is_not_used_any_more(ipc):
    """A reconnecting node detects the wrong mode and waits until it is fixed."""
    (hub, _), (second, heard) = node_in_here(ipc), node_in_here(ipc)
    os.chmod(ipc.settings["folder"], 0o755)
    hub.stop()
    assert eventually(lambda: not second.connected)
    time.sleep(0.3)
    assert not second.connected
    assert heard.gaps == 1
    os.chmod(ipc.settings["folder"], 0o700)
    assert heard.has_gaps(2)
    assert eventually(lambda: second.connected)
