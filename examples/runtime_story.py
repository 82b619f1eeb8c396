"""Runs the example extensions, each surface once, and tells what was allowed and what was stopped: ``make tour``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import standin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EXTENSIONS = Path(__file__).parent / "extensions"


def main() -> int:
    """Prepare a folder with extensions and the servers that they speak to, and go through them."""
    server = standin.start()
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder, mcp_server() as endpoint:
        host = Path(folder)
        furnish(host, server)
        # Every subject may use the temp directory; the guard asks where it is when it is imported.
        os.environ["TMPDIR"] = tempfile.tempdir = str(host / "scratch")
        import tour  # noqa: PLC0415 - see the line above

        tour.run(host, server, endpoint)
    return 0


def furnish(host: Path, server: str) -> None:
    """Copy the examples, with what this machine has in the place of what their manifests name."""
    places = {"/srv/democrai": str(host), "https://api.example.com": server, "https://images.example.com": server}
    for kind in ("modules", "engines", "extractors"):
        shutil.copytree(EXTENSIONS / kind, host / kind, ignore=shutil.ignore_patterns("__pycache__"))
    for manifest in host.glob("*/*/manifest.json"):
        text = manifest.read_text()
        for named, real in places.items():
            text = text.replace(named, real)
        manifest.write_text(text)
    for name in ("state", "sales", "documents", "scratch"):
        (host / name).mkdir()
    (host / "sales" / "may.csv").write_text("3,4,5")
    (host / "documents" / "letter.txt").write_text("Dear module,\n\nall is well.\n")
    (host / "modules" / "broken").mkdir()
    (host / "modules" / "broken" / "manifest.json").write_text(json.dumps({"name": "broken", "acess": []}))


@contextmanager
def mcp_server() -> Iterator[Callable[[], str]]:
    """Start an MCP server in a process of its own, and give what waits for it and returns its endpoint."""
    command = [sys.executable, str(EXTENSIONS / "mcp" / "server.py"), "streamable_http", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            yield lambda: f"http://127.0.0.1:{int(process.stdout.readline())}/mcp" if process.stdout else ""
        finally:
            process.kill()


if __name__ == "__main__":
    sys.exit(main())
