"""Wire: every byte on a checked connection is parsed again, whichever code sends it."""

from __future__ import annotations


def wire(world):
    """Send bytes on a connection that a permit opened; the sink records the arrivals."""
    import socket

    from democrai_sandbox.guard import _core

    home = world.url("sink")
    host = world.at("sink").encode()

    def head(method, path, *more, name=host):
        return b"\r\n".join([method + b" " + path + b" HTTP/1.1", b"Host: " + name, *more, b"", b""])

    allowed, secret = head(b"GET", b"/allowed"), head(b"GET", b"/secret")
    post = head(b"POST", b"/post", b"Content-Length: 4")
    chunked = head(b"POST", b"/post", b"Transfer-Encoding: chunked")
    long = b"%x\r\n%s\r\n0\r\n\r\n" % (len(secret), b"x" * len(secret))
    payloads = {
        "allowed": [allowed],
        "allowed, below": [head(b"GET", b"/allowed/x?y=/secret")],
        "allowed, in pieces": [allowed[:3], allowed[3:20], allowed[20:]],
        "allowed, twice": [allowed, allowed],
        "allowed, pipelined": [allowed * 2],
        "allowed, body": [head(b"POST", b"/post", b"Content-Length: 4") + b"body"],
        "allowed, body, repeated": [post + b"body", post + b"more", post, b"body", post + b"bo", b"dy", allowed],
        "allowed, chunks, repeated": [chunked + long, chunked + long, chunked + b"0\r\n\r\n", allowed],
        "repeated, then other path": [allowed, allowed, secret],
        "repeated with another behind it": [allowed, allowed + secret],
        "repeated with a longer body": [post + b"body", post + b"body" + secret],
        "repeated body in parts, then other path": [post + b"body", post + b"bo", b"dy" + secret],
        "repeated chunks that end earlier": [chunked + long, chunked + b"0\r\n\r\n" + secret],
        "repeated head that goes on": [allowed, allowed[:-2] + b"Content-Length: 4\r\n\r\nbody" + secret],
        "other path": [secret],
        "other path, in pieces": [head(b"GET", b"/secret")[:6], head(b"GET", b"/secret")[6:]],
        "other path, second": [allowed, head(b"GET", b"/secret")],
        "other path, pipelined": [allowed + head(b"GET", b"/secret")],
        "other method": [head(b"POST", b"/allowed", b"Content-Length: 0")],
        "other host": [head(b"GET", b"/allowed", name=b"evil.example.com")],
        "absolute": [head(b"GET", b"http://evil.example.com/allowed")],
        "body then request": [head(b"POST", b"/post", b"Content-Length: 0") + head(b"GET", b"/secret")],
        "climbing": [head(b"GET", b"/allowed/../secret")],
        "not HTTP": [b"EHLO evil\r\n"],
    }

    def play(pieces):
        with _core.request("GET", f"{home}/allowed"), socket.create_connection(world.address("sink"), 5) as made:
            for piece in pieces:
                made.sendall(piece)
            made.settimeout(2)
            return made.recv(15).decode()

    guard = [rule(f"{home}/allowed", "receive"), rule(f"{home}/post", "send")]
    told = {}
    for name, pieces in payloads.items():
        result = world.under(guard, {"it": lambda pieces=pieces: play(pieces)})
        sent = "".join(entry["data"] for entry in result["arrived"] if entry["event"] == "bytes")
        told[name] = {"told": result["seen"]["it"], "secret": any(word in sent for word in ("secret", "evil"))}
    return told


def repeated(world):
    """Repeat the same bytes on one connection while the rights differ."""
    import socket

    from democrai_sandbox import configure_guard, process_guard_context
    from democrai_sandbox.guard import _core

    home, approved = world.url("sink"), []
    request = f"GET /{{}} HTTP/1.1\r\nHost: {world.at('sink')}\r\n\r\n"
    allowed, asked = (request.format(name).encode() for name in ("allowed", "asked"))

    class Approver:
        def decide(self, question):
            if question.target.endswith("/flip"):
                approved.clear() if approved else approved.append(True)
                _core.access_changed()
                return True
            return bool(approved)

    configure_guard(decider=Approver())

    def open_connection(path):
        with _core.request("GET", f"{home}{path}"):
            return socket.create_connection(world.address("sink"), 5)

    def send(made, data):
        made.sendall(data)
        made.settimeout(2)
        return made.recv(9999)[:15].decode()

    def in_narrower_guard():
        with open_connection("/allowed") as made:
            first = [send(made, allowed) for _ in range(2)]
            with process_guard_context(subject="part", access=[rule(f"{home}/other", "receive")]):
                return [*first, outcome(lambda: send(made, allowed))]

    def after_revocation():
        _core.request("GET", f"{home}/flip")
        with open_connection("/allowed") as made:
            first = [send(made, asked) for _ in range(2)]
            _core.request("SEND", f"{home}/allowed/flip")
            return [*first, outcome(lambda: send(made, asked)), outcome(lambda: send(made, asked))]

    actions = {"narrower": in_narrower_guard, "revoked": after_revocation}
    return world.under([rule(f"{home}/allowed", "receive")], actions)


def http2_wire(world):
    """Send handmade frames on an HTTP/2 connection."""
    import socket

    import h2.connection

    from democrai_sandbox.guard import _core

    context = world.tls()
    context.set_alpn_protocols(["h2"])
    home, authority = world.url("http2"), world.at("http2")

    def head(method, path, host=authority):
        return [(":method", method), (":path", path), (":scheme", "https"), (":authority", host), ("x-long", "x" * 99)]

    def play(*heads, cut=None):
        engine = h2.connection.H2Connection()
        engine.initiate_connection()
        with (
            _core.request("GET", f"{home}/allowed"),
            socket.create_connection(world.address("http2"), 5) as plain,
            context.wrap_socket(plain, server_hostname="127.0.0.1") as made,
        ):
            answers = []
            for one in heads:
                stream = engine.get_next_available_stream_id()
                engine.send_headers(stream, one, end_stream=True)
                data = engine.data_to_send()
                for start in range(0, len(data), cut or len(data)):
                    made.sendall(data[start : start + (cut or len(data))])
                while not any(type(event).__name__ == "StreamEnded" for event in engine.receive_data(made.recv(9999))):
                    pass
                answers.append("answered")
            return answers

    allowed = head("GET", "/allowed")
    actions = {
        "allowed": lambda: play(allowed),
        "allowed, in pieces": lambda: play(allowed, head("GET", "/allowed/x"), cut=5),
        "allowed, again": lambda: play(*[allowed] * 5),
        "other path": lambda: play(head("GET", "/secret")),
        "other path, second": lambda: play(allowed, head("GET", "/secret")),
        "other path, in pieces": lambda: play(head("GET", "/secret"), cut=3),
        "other method": lambda: play(head("POST", "/allowed")),
        "other host": lambda: play(head("GET", "/allowed", "evil.example.com")),
    }
    told = {}
    for name, action in actions.items():
        result = world.under([rule(f"{home}/allowed", "receive")], {"it": action})
        arrived = [entry for entry in result["arrived"] if entry["event"] == "request"]
        told[name] = [result["seen"]["it"], [f"{entry['method']} {entry['path']} {entry['host']}" for entry in arrived]]
    return told


def own_connection(world):
    """Connect http.client first, then make requests, and then use its socket."""
    from http.client import HTTPConnection

    home = world.url("http")

    def connect_first(place, path):
        connection = HTTPConnection(*world.address(place), timeout=5)
        try:
            connection.connect()
            connection.request("GET", path)
            return connection.getresponse().status
        finally:
            connection.close()

    def raw(path):
        connection = HTTPConnection(*world.address("http"), timeout=5)
        try:
            connection.request("GET", "/allowed")
            connection.getresponse().read()
            connection.sock.sendall(f"GET {path} HTTP/1.1\r\nHost: {world.at('http')}\r\n\r\n".encode())
            return connection.sock.recv(15).decode()
        finally:
            connection.close()

    actions = {
        "allowed": lambda: connect_first("http", "/allowed"),
        "other path": lambda: connect_first("http", "/secret"),
        "other origin": lambda: connect_first("other", "/allowed"),
        "by its socket": lambda: raw("/allowed/again"),
        "by its socket, other path": lambda: raw("/secret"),
    }
    return world.under([rule(f"{home}/allowed", "receive")], actions)


def times(world):
    """Return this thread's processor time for one write to a connection that a permit opened."""
    import socket
    import time

    from democrai_sandbox.guard import _core

    home = world.url("sink")
    request = f"GET /allowed HTTP/1.1\r\nHost: {world.at('sink')}\r\n\r\n".encode()
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

    def block(header):
        body = b"\x3f\xe1\xff\x03" + header * 21000  # a table of 64 KiB, then headers of which none is permitted
        parts = [body[at : at + 16384] for at in range(0, len(body), 16384)]
        frames = [
            len(part).to_bytes(3) + bytes([9 if number else 1, 4 if part is parts[-1] else 0, 0, 0, 0, 1]) + part
            for number, part in enumerate(parts)
        ]
        return preface + b"".join(frames)

    def work(data):
        with _core.request("GET", f"{home}/allowed"), socket.create_connection(world.address("sink"), 5) as made:
            made.setblocking(False)
            before = time.thread_time()
            try:
                made.send(data)
            except ValueError:
                pass  # refused, but parsed to its end
            return time.thread_time() - before

    writes = {
        "requests": request * 5000,
        "four times as many": request * 20000,
        "headers": block(b"\x00\x00\x00"),
        "headers that the table keeps": block(b"\x40\x00\x00"),
    }

    def least():
        """Take the minimum over alternating runs, so that a busy moment does not affect one write alone."""
        runs = [{name: work(data) for name, data in writes.items()} for _ in range(5)]
        return {name: min(run[name] for run in runs) for name in writes}

    return world.under([rule(f"{home}/allowed", "receive")], {"least": least})["seen"]["least"]


class TestOnTheWire:
    def test_reading_a_write_takes_as_long_as_the_write_is(self, net):
        """Any number of requests in one write, and headers that fill a table, are parsed in linear time."""
        spent = net.run(times)
        assert spent["four times as many"] < spent["requests"] * 9, spent
        assert spent["headers that the table keeps"] < spent["headers"] * 6, spent

    def test_permitted_requests_pass_however_they_are_cut(self, net):
        """In pieces, one after the other, pipelined, with a body."""
        for name, seen in net.run(wire).items():
            if name.startswith("allowed"):
                assert seen["told"] == "HTTP/1.1 200 OK", name

    def test_anything_else_is_stopped_before_it_leaves(self, net):
        """Another path, method or host, the second of two requests, and data that is not HTTP."""
        for name, seen in net.run(wire).items():
            if not name.startswith("allowed"):
                assert seen["told"].startswith(("denied ", "InvalidInputError")), (name, seen)
                assert seen["secret"] is False, name

    def test_the_same_bytes_are_decided_by_the_rights_of_the_moment(self, net):
        """A repeated request needs no second check only while rules permit it in the same activation."""
        told = net.run(repeated)
        home = f"http://127.0.0.1:{net.places['sink'][1]}"
        fine = "HTTP/1.1 200 OK"
        assert told["seen"]["narrower"] == [fine, fine, f"denied receive {home}/allowed"]
        assert told["seen"]["revoked"] == [fine, fine, *[f"denied receive {home}/asked"] * 2]

    def test_the_same_for_http2(self, net):
        """Each stream's headers are parsed on the wire: a denied request is not sent, from any sender."""
        told = net.run(http2_wire)
        here = f"127.0.0.1:{net.places['http2'][1]}"
        fine = {"allowed": 1, "allowed, in pieces": 2, "allowed, again": 5}
        for name, (seen, arrived) in told.items():
            if name in fine:
                assert seen == ["answered"] * fine[name], name
                assert len(arrived) == fine[name], name
            else:
                assert seen.startswith(("denied ", "InvalidInputError")), (name, seen)
                assert set(arrived) <= {f"GET /allowed {here}"}, name

    def test_a_connection_opened_ahead_of_its_request(self, net):
        """It opens for an origin with an allowed URL; each request on it is checked, also through its socket."""
        told = net.run(own_connection)
        home = f"http://127.0.0.1:{net.places['http'][1]}"
        assert told["seen"] == {
            "allowed": 200,
            "other path": f"denied receive {home}/secret",
            "other origin": f"denied connect http://127.0.0.1:{net.places['other'][1]}",
            "by its socket": "HTTP/1.1 200 OK",
            "by its socket, other path": f"denied receive {home}/secret",
        }
        paths = [entry["path"] for entry in told["arrived"] if entry["event"] == "request"]
        assert paths == ["/allowed", "/allowed", "/allowed/again", "/allowed"]
        assert {entry["at"] for entry in told["arrived"]} == {"http"}
