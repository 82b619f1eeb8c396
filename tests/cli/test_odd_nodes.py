"""Nodes of another version, or servers that imitate one, with unexpected JSON."""

from __future__ import annotations

import http.server
import json
import threading

from tests.cli.goldens import code_of, golden, within
from tests.cli.odd_servers import Odd

TOKEN = {"DEMOCRAI_TOKEN": "dsb_none"}
HIDDEN = "\x1b[2J\u202e"
EXPLAINED = {
    **dict.fromkeys(("verdict", "words", "kernel", "file"), HIDDEN),
    "layers": [{"layer": HIDDEN, "answer": "allows", "text": HIDDEN, "decides": True}],
    "entry": {HIDDEN: HIDDEN},
    "advice": [HIDDEN],
    "chain": [],
}
LINE = {
    **dict.fromkeys(("title", "area", "state", "summary", "fix"), HIDDEN),
    "name": "landlock",
    "wanted": True,
    "details": {},
}
SHAPES = (
    {},
    {"items": None, "next": None},
    {"items": ["x", 1, None], "next": 1, "lines": 5},
    {"items": [{"id": HIDDEN, "access": None, "created_at": "never"}], "next": ""},
    {**EXPLAINED, "layers": [{"layer": "x", "answer": HIDDEN, "text": 1, "decides": 0}], "explanations": HIDDEN},
    {**EXPLAINED, "explanations": [EXPLAINED], "note": HIDDEN, "lines": [LINE], "items": [], "next": ""},
)
COMMANDS = (
    ("requests", "list"),
    ("requests", "show", "r1"),
    ("requests", "deny", "r1", "--yes", "--reason", "x"),
    ("approvals", "list", "--json"),
    ("approvals", "revoke", "a1", "--yes"),
    ("audit", "verify"),
    ("status",),
    ("status", "--json"),
    ("shadow", "list"),
    ("shadow", "show", "s1"),
    ("explain", "--subject", "module:x", "--operation", "read", "--target", "/x"),
    ("explain", "sandbox_filesystem_denied:reports:/etc/passwd"),
    ("explain", "PermissionError: [Errno 13] Permission denied: '/etc/x'"),
)


def answered(content):
    """The bytes of a possible answer of a node."""
    body = json.dumps(content).encode()
    return b"HTTP/1.1 200 OK\r\nX-Request-Id: 1\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def test_an_answer_of_another_shape_ends_in_a_sentence():
    """No answer causes a traceback or reaches the terminal unescaped."""
    wrong = []
    for shape in SHAPES:
        with Odd(answered(shape)) as odd:
            for command in COMMANDS:
                done = within((*command, "--url", odd.url), TOKEN)
                said = done.out + done.err
                told = done.status == 0 or code_of(done.err) == "node_unreachable"
                if done.status not in {0, 1, 3} or HIDDEN[0] in said or HIDDEN[-1] in said or not told:
                    wrong.append((shape, command, done))
    assert wrong == []
    with Odd(answered({})) as odd:
        done = within(("requests", "list", "--url", odd.url), TOKEN)
    assert (done.status, done.out) == (3, "")
    assert (code_of(done.err), odd.url in done.err, "KeyError: 'items'" in done.err) == ("node_unreachable", True, True)
    golden("odd-answer.piped", done.err)


def test_a_refusal_without_end_is_cut():
    """A very long reason is shortened."""
    with Odd(answered({"code": "x", "detail": "y" * 1_000_000}).replace(b"200 OK", b"403 Forbidden")) as odd:
        done = within(("status", "--url", odd.url), TOKEN)
    assert (done.status, 3000 < len(done.err) < 6000) == (1, True)


class Failing(http.server.BaseHTTPRequestHandler):
    """A node with two approvals that stops after the first is revoked."""

    def do_GET(self):
        access = {"subject": "module:x", "operation": "read", "target": "/x"}
        one = {"access": access, "scope": "permanent", "effect": "approval", "ended_at": None}
        self.answer(200, {"items": [one | {"id": "a1"}, one | {"id": "a2"}], "next": ""})

    def do_POST(self):
        self.answer(503 if "a2" in self.path else 200, {})

    def answer(self, status, content):
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("X-Request-Id", "1")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_a_node_that_goes_away_after_the_first():
    """The completed revocation is reported beside the error."""
    with http.server.HTTPServer(("127.0.0.1", 0), Failing) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        done = within(("approvals", "revoke", "--subject", "module:x", "--yes", "--url", url), TOKEN)
        server.shutdown()
    assert (done.status, len(done.out.splitlines())) == (3, 1)
    assert done.out.startswith("a1  module:x read /x: ")
