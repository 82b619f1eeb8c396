"""Application with a sandbox, which test bodies create in a separate process. Loaded there by its path."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import threading
import time
from pathlib import Path


class Embedded:
    """Two users, modules from a test, a web server on loopback, and the sandbox."""

    def __init__(self, base):
        from democrai_sandbox.host import Roles

        self.base = Path(base, "app")
        self.modules = self.base / "modules"
        self.modules.mkdir(parents=True)
        self.people = {"ada": Roles("Ada", role="super"), "uma": Roles("Uma", organization_id="north")}
        self.looked_up = []
        self.web = Web()
        self.sandbox = None

    # ---- authenticator and role lookup

    login_url = "/login"

    def identify(self, visit):
        from democrai_sandbox.host import Identity

        user = visit.headers.get("x-user", "")
        return Identity(user, f"{user}-1") if user in self.people else None

    def roles(self, user_id):
        self.looked_up.append(user_id)
        return self.people.get(user_id)

    # ---- the application

    def module(self, name, code, **manifest):
        folder = self.modules / name
        folder.mkdir()
        (folder / "manifest.json").write_text(json.dumps({"name": name, **manifest}))
        (folder / "module.py").write_text("from democrai_sandbox import sdk\n" + code)

    def make(self, **config):
        """Create the sandbox; by default with the application's users."""
        from democrai_sandbox.host import Sandbox

        given = {"state_dir": str(self.base / "state"), "modules_path": str(self.modules)}
        given["sandbox"] = {"poll_seconds": 0.1}
        self.sandbox = Sandbox.from_config({**given, **config}, environ={}, authenticator=self, roles=self)
        return self.sandbox

    def play(self, story, **config):
        """Run a coroutine function while the sandbox is started; return its result."""
        sandbox = self.sandbox or self.make(**config)

        async def whole():
            async with sandbox:
                return await story(self)

        return asyncio.run(whole())

    def caller(self, user="uma", session="monday"):
        from democrai_sandbox.host import Identity

        return self.sandbox.caller(Identity(user, session))

    async def action(self, module, action, user="uma", **params):
        """Return the result of an action, or the class and the text of its error."""
        try:
            return await self.sandbox.runtime.modules.action(module, action, params, self.caller(user))
        except Exception as error:
            return [type(error).__name__, str(error)]

    def as_ada(self, act, *args, **details):
        """Run a function as the administrator."""
        from democrai_sandbox.runtime.access_environment import serving

        with serving(self.caller("ada")):
            return getattr(self.sandbox.access.administration, act)(*args, **details)

    def pending(self):
        return [request.id for request in self.as_ada("pending_requests").items]

    async def resumed(self, request_id, seconds=60):
        """Wait until a resume action has ended, or failed at least once."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = self.sandbox.access.store.resume_of(request_id)
            if found is not None and (found.finished_at or found.last_error):
                return found
            await asyncio.sleep(0.05)
        raise AssertionError("nothing went on")


class Web:
    """Web server on loopback that answers with the request."""

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

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        self.url = f"http://127.0.0.1:{server.server_port}"
