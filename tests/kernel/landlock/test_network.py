"""TCP ports, and scopes of the confined processes."""

from __future__ import annotations


def ports(w):
    import socket

    servers = {name: w.listener(host) for name, host in (("v4", "127.0.0.1"), ("v6", "::1"))}
    other, other_port = w.listener()
    early = socket.socket()
    rules = [(port, w.NetRight.CONNECT_TCP) for _, port in servers.values()]
    w.confine(ports=[*rules, (0, w.NetRight.BIND_TCP)], connect=True, bind=True)

    def bind(port):
        with socket.socket() as server:
            server.bind(("127.0.0.1", port))
            server.listen()

    def mapped():
        with socket.socket(socket.AF_INET6) as client:
            client.connect(("::ffff:127.0.0.1", other_port))

    return {
        "v4": w.tried(w.connected, "127.0.0.1", servers["v4"][1]),
        "v6": w.tried(w.connected, "::1", servers["v6"][1]),
        "other v4": w.tried(w.connected, "127.0.0.1", other_port),
        "other v6": w.tried(w.connected, "::1", other_port),
        "other mapped": w.tried(mapped),
        "by an early socket": w.tried(early.connect, ("127.0.0.1", other_port)),
        "bind to any": w.tried(bind, 0),
        "bind to one": w.tried(bind, other_port),
    }


def test_tcp_is_held_to_the_ports_of_the_plan(ground):
    """The same for IPv4, IPv6 and mapped addresses, for existing sockets, and for binding."""
    assert ground.run(ports) == {
        "v4": "ok",
        "v6": "ok",
        "other v4": "EACCES",
        "other v6": "EACCES",
        "other mapped": "EACCES",
        "by an early socket": "EACCES",
        "bind to any": "ok",
        "bind to one": "EACCES",
    }


def only_connect(w):
    import socket

    server, port = w.listener()
    w.confine(connect=True)

    def bind():
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()

    return w.tried(w.connected, "127.0.0.1", port), w.tried(bind)


def test_connecting_and_binding_are_handled_apart(ground):
    """A plan without connect ports denies all connections, and does not restrict binding."""
    assert ground.run(only_connect) == ["EACCES", "ok"]


def scopes(w):
    import os
    import signal
    import socket
    import threading

    def listening(name):
        server = socket.socket(socket.AF_UNIX)
        server.bind(name)
        server.listen()
        return server

    def connect(name):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(name)

    def datagram(name):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            client.sendto(b"x", name)

    prefix = f"\0landlock-{os.getpid()}"
    before = listening(f"{prefix}-before")
    letters = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    letters.bind(f"{prefix}-letters")
    path = str(w.inside / "socket")
    named = listening(path)
    end, start = os.pipe()
    outsider = os.fork()
    if outsider == 0:  # it cannot be signaled later, and ends with this process
        os.closerange(0, end)
        os.close(start)
        os.read(end, 1)
        os._exit(0)
    w.confine(scopes=True)
    inner = listening(f"{prefix}-inner")
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    answer = {
        "abstract, from before": w.tried(connect, f"{prefix}-before"),
        "datagram, from before": w.tried(datagram, f"{prefix}-letters"),
        "abstract, from inside": w.tried(connect, f"{prefix}-inner"),
        "by its path": w.tried(connect, path),
        "signal to a process from before": w.tried(os.kill, outsider, signal.SIGTERM),
        "by its handle": w.tried(lambda: signal.pidfd_send_signal(os.pidfd_open(outsider), signal.SIGTERM)),
        "signal to an own child": w.tried(os.kill, child, signal.SIGKILL),
        "signal to itself": w.tried(os.kill, os.getpid(), 0),
        "signal to an own thread": w.tried(signal.pthread_kill, threading.get_ident(), 0),
    }
    answer["the child ended"] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return answer


def test_signals_and_abstract_sockets_end_at_the_border(ground):
    """Earlier processes and sockets are out of reach, later ones are not; sockets with a path stay reachable."""
    assert ground.run(scopes) == {
        "abstract, from before": "EPERM",
        "datagram, from before": "EPERM",
        "abstract, from inside": "ok",
        "by its path": "ok",
        "signal to a process from before": "EPERM",
        "by its handle": "EPERM",
        "signal to an own child": "ok",
        "signal to itself": "ok",
        "signal to an own thread": "ok",
        "the child ended": -9,
    }
