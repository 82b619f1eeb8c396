"""A web server on the loopback address, in the place of one out in the world.

It answers with what it was asked, and below ``/forecast`` with the weather.
"""

from __future__ import annotations

import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def start() -> str:
    """Serve in a thread of the host's and return the address, such as ``http://127.0.0.1:8731``."""
    os.environ["no_proxy"] = "127.0.0.1"  # whatever proxy this machine has, it does not lead back here
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        moved = self.path.endswith("/moved")
        place = self.path.removeprefix("/forecast/")
        known = f"{place.capitalize()}: sunny, 21 degrees, light wind from the west"
        body = (known if place != self.path else f"{self.command} {self.path}").encode()
        self.send_response(302 if moved else 200)
        if moved:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = _answer  # noqa: N815 - their names

    def log_message(self, *_: object) -> None:
        """Leave out a line for each request."""
