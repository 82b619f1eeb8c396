"""A host with extensions, set up by test bodies in a separate process. Loaded there by its path."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import shutil
import threading
from datetime import UTC, datetime

MANIFESTS = {"module": "modules", "engine": "engines", "extractor": "extractors"}


class House:
    """The access-policy service on SQLite, folders of extensions, a web server on loopback, and the runtime."""

    def __init__(self, world):
        self.base = world.base
        self.web = Web()
        self.state = os.path.join(self.base, "state")
        os.makedirs(self.state)
        self.folders = {kind: os.path.join(self.base, folder) for kind, folder in MANIFESTS.items()}
        for folder in self.folders.values():
            os.makedirs(folder)
        self.runtime = None
        self.access = None

    def extension(self, name, code, *, kind="module", **manifest):
        """Write an extension."""
        folder = os.path.join(self.folders[kind], name)
        os.makedirs(folder)
        write_text(f"{folder}/manifest.json", json.dumps({"name": name, **manifest}))
        write_text(f"{folder}/{kind}.py", code)
        return folder

    def example(self, kind, name, source, **places):
        """Copy an example; ``places`` replaces the paths that its manifest names."""
        folder = os.path.join(self.folders[kind], name)
        shutil.copytree(os.path.join(source, MANIFESTS[kind], name), folder)
        with open(f"{folder}/manifest.json") as file:
            text = file.read()
        for named, real in places.items():
            assert named in text, named
            text = text.replace(named, real)
        write_text(f"{folder}/manifest.json", text)

    def file(self, name, text="found"):
        """Write a file outside all folders of extensions."""
        path = os.path.join(self.base, "outside", name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        write_text(path, text)
        return path

    def serve(self, story, **settings):
        """Run a coroutine function while the runtime serves, and return its result.

        Modules run in this process, where the story can look at them, unless ``isolation`` says otherwise.
        """
        settings["isolation"] = {"default": "in_process", **settings.get("isolation", {})}
        from democrai_sandbox.access import Access, AccessSettings
        from democrai_sandbox.runtime import Runtime, RuntimeSettings
        from democrai_sandbox.runtime.access_environment import GuardSurroundings

        settings_of_access = AccessSettings(
            database=database(self.state), key_file=f"{self.state}/keys", poll_seconds=0.1
        )
        places = {f"{folder}_path": self.folders[kind] for kind, folder in MANIFESTS.items()}
        runtime_settings = RuntimeSettings(data_dir=os.path.join(self.base, "data"), **places, **settings)

        async def serve():
            async with self.runtime:
                return await story()

        self.access = Access(settings_of_access, GuardSurroundings())
        self.runtime = Runtime(runtime_settings, self.access, protected_paths=[self.state])
        with self.access:
            try:
                return asyncio.run(serve())
            finally:
                self.web.stop()

    def problems(self):
        """Return the problems of each broken extension."""
        return {
            f"{found.kind}:{found.name}": [str(problem) for problem in found.problems]
            for found in self.runtime.extensions
            if found.is_broken
        }

    # ---- as an administrator

    def admin(self, act, *args, **details):
        """Run an operation as an administrator."""
        from democrai_sandbox.access import Caller
        from democrai_sandbox.runtime.access_environment import serving

        with serving(Caller(user_id="ada", role="super")):
            return getattr(self.access.administration, act)(*args, **details)

    def decide(self, effect, subject, resource_type, operation, target):
        """Record a decision without a request."""
        from democrai_sandbox.policy import Subject

        wanted = {"resource_type": resource_type, "operation": operation, "target": target}
        self.admin("decide_unasked", Subject.parse(subject), effect=effect, **wanted)

    def pending(self):
        """Return the pending requests."""
        return [
            [str(found.access.subject), str(found.access.operation), found.access.target]
            for found in self.admin("pending_requests").items
        ]

    def register(self, name, url, transport="streamable_http", **more):
        """Add an MCP server to the registry."""
        entry = {"name": name, "transport": transport, "endpoint_url": url, "timeout_ms": 10_000, **more}
        self.runtime.store.add_mcp_server(entry, now=datetime.now(UTC))

    # ---- as a user

    async def task(self, module, name, params=None, **identity):
        """Run a task to its end; return its result, or the error class and the call chain of a denial."""
        task_id = await self.runtime.tasks.submit(module, name, params or {}, caller(**identity))
        return await self.ended(task_id)

    async def ended(self, task_id):
        """Wait for the end of a task."""
        while not (found := await self.runtime.tasks.status(task_id)).state.is_final:
            await asyncio.sleep(0.02)
        return found.failure.type if found.failure else found.result


def database(folder):
    """Return the URL of a database in a folder; a copy of the prepared one, if available."""
    path = os.path.join(folder, "access.db")
    if prepared := os.environ.get("PREPARED_DATABASE"):
        shutil.copyfile(prepared, path)
    return f"sqlite:///{path}"


def caller(**identity):
    """Return a user in a session."""
    from democrai_sandbox.access import Caller

    return Caller(**{"user_id": "uma", "session_key": "s1", **identity})


async def told(work):
    """Return the result of some work, or the class of its error, in the extension or in the runtime."""
    try:
        return await asyncio.wait_for(work, 60)
    except Exception as error:
        return getattr(error, "kind", "") or type(error).__name__


async def hint_of(work):
    """Return the hint of a denial; empty without a denial."""
    from democrai_sandbox.errors import SandboxDenied

    try:
        await asyncio.wait_for(work, 60)
    except SandboxDenied as denial:
        return denial.hint
    return None


def entry(operation, target):
    """Return an entry of an access list."""
    kind = "network" if operation in {"connect", "receive", "send"} else "filesystem"
    return {"resource_type": kind, "operation": operation, "target": target}


def write_text(path, text):
    with open(path, "w") as file:
        file.write(text)


class Web:
    """A web server on loopback that echoes and records HTTP requests."""

    def __init__(self):
        os.environ["no_proxy"] = "127.0.0.1"
        self.asked = asked = []

        class Answers(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(self.path)
                body = f"GET {self.path}".encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def stop(self):
        self._server.shutdown()
        self._server.server_close()
