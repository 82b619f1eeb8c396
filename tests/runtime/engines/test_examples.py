"""The example engine and extractor: permitted operations work, forbidden attempts are refused."""

from __future__ import annotations

import http.server
import threading
from pathlib import Path

import pytest

EXAMPLES = str(Path(__file__).parents[3] / "examples" / "extensions")


class Dictionary(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"meaning of {self.path.rpartition('/')[2]}".encode())

    def log_message(self, *args):
        pass


@pytest.fixture
def dictionary():
    """Run a server that explains any word."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Dictionary)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/words"
    server.shutdown()
    server.server_close()


def examples(world):
    hosting = world.load(world.args[0])
    outcome = hosting["outcome"]
    folders, url = world.args[1:]

    async def story(runtime):
        engines, extractors = runtime.engines, runtime.extractors
        await engines.install("wordcount")
        await extractors.install("plaintext")
        runtime.store.set_settings("engine", "wordcount", {"dictionary_url": url}, now=hosting["NOW"])
        return {
            "count": await engines.call("wordcount", "count", {"text": "To be, or not to be"}),
            "frequent": [item async for item in engines.stream("wordcount", "frequent", {"text": "a b a"})],
            "look up": await engines.call("wordcount", "look_up", {"word": "guard"}),
            "remember": [await engines.call("wordcount", "remember", {"text": text}) for text in "ab"],
            "engine": await engines.call("wordcount", "misbehave"),
            "extract": await extractors.call("plaintext", "extract", {"data": b"One\ntwo\r\n\r\n\n\nthree\xff"}),
            "file": await outcome(extractors.call("plaintext", "extract_file", {"path": world.secret})),
            "extractor": await extractors.call("plaintext", "misbehave"),
        }

    return hosting["serve"](
        world.base, story, asking=True, engines_path=f"{folders}/engines", extractors_path=f"{folders}/extractors"
    )


def test_the_examples_do_what_they_say(workshop, dictionary):
    """One per kind, installed with real pip and called like a host does."""
    told = workshop.host(examples, EXAMPLES, dictionary)
    assert told["count"] == {"words": 6, "with": "wordtools 1.0"}
    assert told["frequent"] == [["a", 2], ["b", 1]]
    assert told["look up"] == "meaning of guard"
    assert told["remember"] == [1, 2]
    assert told["extract"] == {"paragraphs": ["One two", "three\ufffd"]}
    assert told["file"]["error"] == "FilesystemDenied"
    assert told["file"]["chain"] == ["extractor:plaintext"]
    assert len(told["engine"]) == 6
    assert "it worked" not in told["engine"].values()
    assert told["extractor"] == {
        "read a file of the host": "FilesystemDenied",
        "write beside its own code": "FilesystemDenied",
        "start a program": "SubprocessDenied",
        "use native code": "ModuleDenied",
    }
