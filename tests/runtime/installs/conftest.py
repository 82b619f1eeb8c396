"""A private world with extensions, and child processes that install them."""

from __future__ import annotations

import functools
import http.server
import json
import os
import ssl
import threading
from pathlib import Path

import pytest

from tests.runtime.cases import PreparedCase
from tests.runtime.installs import packages

HOSTING = str(Path(__file__).with_name("hosting.py"))
_NETWORK = ("PIP_CERT", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "http_proxy", "https_proxy", "no_proxy")


class Workshop(PreparedCase):
    """A case with folders of extensions, and of wheels, the only ones that pip can find."""

    def __init__(self, base, database):
        super().__init__(base, database)
        self.wheels = base / "wheels"
        self.wheels.mkdir()

    def extension(self, *requirements, kind="engine", name="demo", code="", runtime=None, **install):
        """Write an extension; further arguments go into the install section."""
        folder = self.base / f"{kind}s" / name
        folder.mkdir(parents=True, exist_ok=True)
        manifest = {"name": name, "install": {"requirements": list(requirements), **install}, "runtime": runtime or {}}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        (folder / f"{kind}.py").write_text(code)
        return folder

    def wheel(self, name, version="1.0", **more):
        return packages.wheel(self.wheels, name, version, **more)

    def offline(self):
        """Return the variables of a host whose pip has a folder of wheels and no index."""
        return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.wheels), "PIP_CONFIG_FILE": os.devnull}

    def online(self):
        """Return the variables by which this machine reaches its index, and its certificates."""
        usual = {"SSL_CERT_FILE": ssl.get_default_verify_paths().openssl_cafile}
        return usual | {name: os.environ[name] for name in _NETWORK if name in os.environ}

    def host(self, body, *args, network=None, **more):
        """Run a body like a host, in a separate process."""
        return self.run(body, HOSTING, *args, **(self.offline() if network is None else network), **more)


@pytest.fixture
def workshop(tmp_path, prepared_file, prepared_tools):
    """Make the workshop of one test."""
    made = Workshop(tmp_path, prepared_file)
    made.give_tools(prepared_tools)
    return made


def rule(operation, target):
    """Return an entry of an access list."""
    kind = "network" if operation in {"connect", "receive", "send"} else "filesystem"
    return {"resource_type": kind, "operation": operation, "target": str(target)}


class Web:
    """Two small servers on loopback that serve a folder and record HTTP requests."""

    def __init__(self, folder):
        self.asked = []
        handler = functools.partial(_Handler, self.asked, directory=str(folder))
        self.servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) for _ in range(2)]
        for server in self.servers:
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        self.url, self.other_url = (f"http://127.0.0.1:{server.server_port}" for server in self.servers)

    def stop(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()


class _Handler(http.server.SimpleHTTPRequestHandler):
    def __init__(self, asked, *args, **more):
        self._asked = asked
        super().__init__(*args, **more)

    def log_message(self, *args):
        self._asked.append((self.server.server_port, self.path))


@pytest.fixture
def web(workshop):
    """Run servers for the folder of wheels."""
    servers = Web(workshop.wheels)
    yield servers
    servers.stop()
