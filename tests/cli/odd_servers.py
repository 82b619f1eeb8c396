"""Servers that are not nodes, one for each kind of wrong answer."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
import time

HTML = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n<h1>Hello</h1>"
EXPORT = (
    b"HTTP/1.1 200 OK\r\nX-Request-Id: 1\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
    b'10\r\n{"sequence": 1}\n\r\n'
)
ANSWERS = {
    "html": HTML,
    "html that is refused": HTML.replace(b"200 OK", b"404 Not Found"),
    "garbage": b"\x00\x1b[31mgarbage\xff\xfe\r\n" * 10,
    "a redirect": b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/\r\nContent-Length: 0\r\n\r\n",
    "other JSON": b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n{"ok": true}',
    "a list": b"HTTP/1.1 200 OK\r\nX-Request-Id: 1\r\nContent-Length: 2\r\n\r\n[]",
    "nothing": b"",
    "half a head": b"HTTP/1.1 200 OK\r\nX-Request-Id: 1\r\nContent-",
    "half an answer": b'HTTP/1.1 200 OK\r\nX-Request-Id: 1\r\nContent-Length: 1000\r\n\r\n{"items": [',
    "a head without end": b"HTTP/1.1 200 OK\r\n" + b"X-A: b\r\n" * 1000,
    "too deep": b"HTTP/1.1 200 OK\r\nX-Request-Id: 1\r\nContent-Length: 100000\r\n\r\n" + b"[" * 100000,
}

DRIPS = {
    "a head": (b"HTTP/1.1 200 OK\r\nX-Request-Id: 1\r\n", b"X-A"),
    "a body": (b"HTTP/1.1 200 OK\r\nX-Request-Id: 1\r\n\r\n{", b" "),
    "a promise": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a line": (EXPORT, b"1\r\nx\r\n"),
}
"""What begins an answer, and what then comes again and again."""


class Listener:
    """Server that handles one connection after another on a thread, until its block ends."""

    def __init__(self):
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            try:
                self.speak(connection)
            except OSError:  # whoever asked does not want the rest
                connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(60)


class Relay(Listener):
    """Proxy for a node; while ``cuts`` is set, every answer ends after that many bytes."""

    def __init__(self, url):
        self.cuts = None
        self.cut = threading.Event()
        """Set when an answer was cut."""
        host, port = url.removeprefix("http://").rsplit(":", 1)
        self._node = (host, int(port))
        super().__init__()

    def speak(self, connection):
        """Hand on what is asked, and what of the answer is to come through."""
        with connection, socket.create_connection(self._node, 30) as node:
            node.sendall(connection.recv(65536))
            answer = b"".join(iter(lambda: node.recv(65536), b""))
            cuts = self.cuts  # once: it changes meanwhile
            connection.sendall(answer[:cuts])
            if cuts is not None:
                self.cut.set()


class Odd(Listener):
    """Server that answers every connection with the same bytes, then closes it, keeps it, or sends slowly."""

    def __init__(self, answer, *, keeps=False, drips=b"", context=None):
        self.asked = threading.Event()
        """Set when somebody has got the answer."""
        self._answer, self._keeps, self._drips, self._context = answer, keeps, drips, context
        self._kept = []
        super().__init__()

    def speak(self, connection):
        """Say what it says."""
        connection.settimeout(30)
        if self._context is not None:
            connection = self._context.wrap_socket(connection, server_side=True)
        if self._answer is not None:
            connection.recv(65536)
            connection.sendall(self._answer)
            self.asked.set()
        while self._drips:  # until nobody wants it
            connection.sendall(self._drips)
            time.sleep(0.01)
        if self._keeps:
            self._kept.append(connection)
        else:
            connection.close()

    def __exit__(self, *_):
        super().__exit__()
        for connection in self._kept:
            connection.close()


def unknown_certificate(folder):
    """Server side of TLS with an untrusted certificate."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-subj", "/CN=localhost", "-days", "1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context
