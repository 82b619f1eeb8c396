"""A server that misbehaves in every way, by path: ``python odd_server.py``. Its first line is its port.

Below ``/say/<what>`` it implements enough MCP to reach a call, and then misbehaves. ``GET /log`` lists the clients.
"""

from __future__ import annotations

import gzip
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

SEEN = []
DEEP = 100
BOMB = gzip.compress(b" " * 10_000_000)
PATTERN = "^(a+)+$"


def nested(levels):
    return "[" * levels + "]" * levels


class Odd(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_GET(self):
        parts = urlsplit(self.path)
        if parts.path == "/log":
            return self.answer(json.dumps(SEEN).encode())
        SEEN.append(["GET", parts.path])
        stream = getattr(self, "sse_" + parts.path.strip("/").replace("sse/", "").replace("-", "_"), None)
        return stream() if stream else self.answer(b"", status=405)

    def do_DELETE(self):
        SEEN.append(["DELETE", urlsplit(self.path).path])
        self.answer(b"")

    def do_POST(self):
        parts = urlsplit(self.path)
        SEEN.append(["POST", parts.path])
        self.query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        act, _, what = parts.path.strip("/").partition("/")
        getattr(self, "do_" + act.replace("-", "_"), self.missing)(what)

    def answer(self, body, *, kind="application/json", status=200, **headers):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def missing(self, _):
        self.answer(b"", status=404)

    # ---- invalid HTTP

    def do_hang(self, _):
        SEEN.append(["late", "any"])
        time.sleep(20)

    def do_cut(self, what):
        """Close the connection: immediately, within the headers, within a body, within a stream."""
        parts = {
            "nothing": b"",
            "headers": b"HTTP/1.1 200 OK\r\nContent-Ty",
            "body": b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 500\r\n\r\n{"jsonrpc"',
            "stream": b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nevent: message\ndata: {",
        }
        self.wfile.write(parts[what])
        self.close_connection = True

    def do_garbage(self, what):
        if what == "wire":
            self.wfile.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
            self.close_connection = True
        elif what == "html":
            self.answer(b"<html>hello</html>", kind="text/html")
        elif what == "json":
            self.answer(b"{nope")
        elif what == "other":
            self.answer(b'{"hello": "world"}')
        elif what == "result":
            self.answer(json.dumps({"jsonrpc": "2.0", "id": self.body.get("id"), "result": {"tools": 7}}).encode())
        else:
            self.answer(b"\xff\xfe\x00")

    def do_redirect(self, _):
        self.answer(b"", status=int(self.query.get("status", 307)), Location=self.query["to"])

    def do_moved(self, what):
        """Redirect below the endpoint: to an answer, or endlessly."""
        if what.startswith("say/"):
            return self.do_say(what.removeprefix("say/"))
        return self.answer(b"", status=307, Location="/moved/say/clever" if not what else f"/moved/{what}/on")

    def do_status(self, what):
        self.answer(b"no", kind="text/plain", status=int(what))

    def do_gzip(self, _):
        self.answer(BOMB, Content_Encoding="gzip")

    def do_flood(self, what):
        """Never stop: one endless body, or an endless series of notifications."""
        kind = "text/event-stream" if what == "events" else "application/json"
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.end_headers()
        note = {"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": "x" * 5000}}
        piece = f"event: message\ndata: {json.dumps(note)}\n\n".encode() if what == "events" else b" " * 65536
        try:
            while True:
                self.wfile.write(piece)
        except OSError:
            SEEN.append(["stopped", what])
        self.close_connection = True

    # ---- invalid MCP

    def do_say(self, what):
        method = self.body.get("method", "")
        if "id" not in self.body or not method:
            return self.answer(b"", status=202)
        if method == "initialize":
            version = self.body["params"]["protocolVersion"]
            server = {"name": "odd", "version": "1"}
            return self.result({"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server})
        if method == "server/discover":
            return self.failure(-32601, "no such method")
        return getattr(self, "say_" + what.replace("-", "_"))(method)

    def result(self, value):
        self.answer(self.reply(value))

    def reply(self, value):
        return json.dumps({"jsonrpc": "2.0", "id": self.body["id"], "result": value}).encode()

    def failure(self, code, message):
        error = {"code": code, "message": message}
        self.answer(json.dumps({"jsonrpc": "2.0", "id": self.body["id"], "error": error}).encode())

    def content(self, structured="null", text="hello"):
        """Return a result of a call whose structured part is raw JSON."""
        content = json.dumps([{"type": "text", "text": text}])
        value = f'{{"content": {content}, "structuredContent": {structured}}}'
        self.answer(f'{{"jsonrpc": "2.0", "id": {self.body["id"]}, "result": {value}}}'.encode())

    def say_deep(self, _):
        self.content(f'{{"deep": {nested(DEEP)}}}')

    def say_deeper(self, _):
        self.content(f'{{"deep": {nested(10_000)}}}')

    def say_nan(self, _):
        self.content('{"value": NaN}')

    def say_digits(self, _):
        self.content(f'{{"value": {"9" * 10_000}}}')

    def say_wide(self, _):
        """Return as many values as the limit permits."""
        self.content('{"wide": [' + "[]," * 1_300_000 + "[]]}")

    def say_twice(self, _):
        self.content('{"value": 1, "value": 2}')

    def say_clever(self, _):
        """Return a result that tries to be more than data."""
        trick = {
            "__class__": "os.system",
            "$ref": "file:///etc/passwd",
            "py/object": "subprocess.Popen",
            "is_error": True,
        }
        content = [
            {"type": "text", "text": "ok", "_meta": {"x": 1}},
            {"type": "resource_link", "uri": "file:///etc/passwd", "name": "passwd"},
        ]
        self.result({"content": content, "structuredContent": trick, "isError": False, "extra": trick})

    def say_pattern(self, method):
        """Return a schema whose pattern would take forever to check."""
        schema = {"type": "object", "properties": {"text": {"type": "string", "pattern": PATTERN}}}
        if method == "tools/list":
            tool = {"name": "any", "inputSchema": {"type": "object"}, "outputSchema": schema}
            return self.result({"tools": [tool]})
        return self.content(json.dumps({"text": "a" * 60 + "!"}))

    def say_ask(self, method):
        """Send a request to the client before answering."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for number, ask in enumerate(("roots/list", "sampling/createMessage", "elicitation/create")):
            message = {
                "jsonrpc": "2.0",
                "id": f"ask{number}",
                "method": ask,
                "params": {"messages": [], "maxTokens": 1},
            }
            self.wfile.write(f"event: message\ndata: {json.dumps(message)}\n\n".encode())
        said = self.reply({"content": [{"type": "text", "text": "asked"}]}).decode()
        self.wfile.write(f"event: message\ndata: {said}\n\n".encode())
        self.close_connection = True

    def tools(self, *names, **more):
        self.result({"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names], **more})

    def say_pages(self, _):
        cursor = int((self.body.get("params") or {}).get("cursor", "0")) + 1
        self.tools(f"tool{cursor}", nextCursor=str(cursor))

    def say_many(self, _):
        self.tools(*map(str, range(2000)))

    def say_twins(self, _):
        self.tools("one", "one")

    def say_hidden(self, _):
        self.tools("pay\u202e")

    def say_error(self, _):
        self.failure(-32000 - 99, "out\x1b[2Jof order\n" + "x" * 5000)

    def say_late(self, method):
        SEEN.append(["late", method])
        time.sleep(20)

    # ---- invalid SSE

    def begin(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.close_connection = True

    def sse_silent(self):
        self.begin()
        self.wfile.flush()
        time.sleep(20)

    def sse_closes(self):
        self.begin()
        self.wfile.write(b"event: endpoint\ndata: /sse/closes/messages\n\n")

    def sse_elsewhere(self):
        self.begin()
        self.wfile.write(b"event: endpoint\ndata: http://127.0.0.2:1/messages\n\n")
        time.sleep(20)

    def sse_sibling(self):
        self.begin()
        self.wfile.write(b"event: endpoint\ndata: /admin/delete-everything\n\n")
        time.sleep(20)

    def sse_html(self):
        self.answer(b"<html></html>", kind="text/html")


def main():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Odd)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    print(server.server_port, flush=True)
    sys.stdin.read()  # until the parent ends


if __name__ == "__main__":
    main()
