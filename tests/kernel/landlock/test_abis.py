"""Each kernel ABI, forced one after another: supported restrictions hold, and the others are reported."""

from __future__ import annotations

import pytest

SINCE = {
    "read": (1, "EACCES"),
    "list": (1, "EACCES"),
    "write": (1, "EACCES"),
    "create": (1, "EACCES"),
    "remove": (1, "EACCES"),
    "execute": (1, "EACCES"),
    "device node": (1, "EACCES"),
    "truncate": (3, "EACCES"),
    "connect": (4, "EACCES"),
    "bind": (4, "EACCES"),
    "device ioctl": (5, "EACCES"),
    "abstract socket": (6, "EPERM"),
    "signal": (6, "EPERM"),
}
"""First ABI that stops each operation, and the error."""
SINCE_FEATURE = {"files": 1, "refer": 2, "truncate": 3, "tcp_ports": 4, "device_ioctls": 5, "scopes": 6}


def forbidden_acts(w):
    import fcntl
    import os
    import socket
    import stat

    (w.outside / "emptied.txt").write_text("content")
    server, port = w.listener()
    abstract = socket.socket(socket.AF_UNIX)
    abstract.bind(f"\0landlock-{os.getpid()}")
    abstract.listen()
    parent = os.getppid()
    allowed = ((port + 1) % 65536 or 1, w.NetRight.CONNECT_TCP), (0, w.NetRight.BIND_TCP)
    status = w.confine(("/dev/urandom", w.READ), ports=allowed, connect=True, bind=True, scopes=True)

    def ioctl():
        with open("/dev/urandom", "rb") as device:
            fcntl.ioctl(device, 0x80045200, bytes(4))  # RNDGETENTCNT: available entropy

    def bind():
        with socket.socket() as other:
            other.bind(("127.0.0.1", port if port != 1 else 2))

    def abstract_connect():
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(f"\0landlock-{os.getpid()}")

    acts = {
        "read": lambda: open(w.secret),
        "list": lambda: os.listdir(w.outside),
        "write": lambda: open(w.secret, "a"),
        "create": lambda: open(w.outside / "new", "x"),
        "remove": lambda: os.unlink(w.secret),
        "device node": lambda: os.mknod(w.inside / "disk", stat.S_IFBLK | 0o600, os.makedev(7, 0)),
        "truncate": lambda: os.truncate(w.outside / "emptied.txt", 0),
        "connect": lambda: w.connected("127.0.0.1", port),
        "bind": bind,
        "device ioctl": ioctl,
        "abstract socket": abstract_connect,
        "signal": lambda: os.kill(parent, 0),
    }
    outcomes = {name: w.tried(act) for name, act in acts.items()}
    outcomes["execute"] = w.executed(w.outside / "program")
    moved = w.tried(os.rename, w.inside / "file.txt", w.inside / "one/file.txt")
    return {"status": status.as_dict(), "outcomes": outcomes, "moved": moved}


@pytest.mark.parametrize("abi", range(1, 8))
def test_what_an_abi_can_stop_is_stopped_and_the_rest_is_reported(ground, abi):
    """The status reports exactly the operations that succeed."""
    answer = ground.run(forbidden_acts, abi=abi)
    for act, (since, how) in SINCE.items():
        outcome = answer["outcomes"][act]
        if abi >= since:
            assert outcome == how, act
        else:
            assert outcome != how, f"{act} is stopped by an ABI that is not known to do so"
    assert answer["moved"] == ("ok" if abi >= 2 else "EXDEV")
    status = answer["status"]
    assert status["details"]["abi"] == abi
    assert status["details"]["features"] == [name for name, since in SINCE_FEATURE.items() if since <= abi]
    assert status["details"]["lacking"] == [name for name, since in SINCE_FEATURE.items() if since > abi]
    assert status["state"] == ("active" if abi >= 6 else "partial")
    assert ("truncate()" in status["reason"]) == (abi < 3)
    assert ("TCP" in status["reason"]) == (abi < 4)
    assert ("ioctls" in status["reason"]) == (abi < 5)
    assert ("signals" in status["reason"]) == (abi < 6)
    assert bool(status["fix"]) == (abi < 6)


def unrestricted(w):
    status = w.confine()
    return {"status": status.as_dict(), "read": w.tried(open, w.secret), "privileges": w.native.no_new_privs()}


def test_an_abi_of_zero_restricts_nothing_and_says_so(ground):
    """A machine without Landlock is reported as such; nothing is half applied."""
    answer = ground.run(unrestricted, abi=0)
    assert answer["status"]["state"] == "unsupported"
    assert answer["status"]["reason"]
    assert answer["status"]["fix"]
    assert answer["read"] == "ok"
    assert answer["privileges"] is False


def test_a_higher_abi_than_the_kernel_has_changes_nothing(ground):
    """The variable can only lower the ABI."""
    status = ground.run(unrestricted, abi=99)["status"]
    assert status["details"]["abi"] == 7
    assert status["details"]["forced"] is False


def without_ports_and_scopes(w):
    server, port = w.listener()
    status = w.confine()
    return status.as_dict(), w.tried(w.connected, "127.0.0.1", port)


def test_what_a_plan_does_not_ask_for_is_not_missed(ground):
    """Without port rules and scopes, ABI 5 is complete: it is active, and lists neither as lacking."""
    status, connect = ground.run(without_ports_and_scopes, abi=5)
    assert status["state"] == "active"
    assert status["details"]["features"] == ["files", "refer", "truncate", "device_ioctls"]
    assert status["details"]["lacking"] == []
    assert connect == "ok"
