"""Servers with arbitrary answers, and a host with its media service, for the children of the media tests."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import sys
import threading
import time


class Site:
    """A web server that sends exactly the bytes of its routes, on a separate address."""

    def __init__(self, host="127.0.0.1", tls=None):
        self.host, self.tls = host, tls
        self.routes, self.asked, self.ended = {}, [], []
        self.open = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server((host, 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def url(self, path="/"):
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}{path}"

    def text(self, path, body=b"ok", status="200 OK", **headers):
        """Answer a path with a body and its length."""
        self.routes[path] = lambda line, asked: answer(body, status, **headers)

    def moved(self, path, location, status="302 Found"):
        self.routes[path] = lambda line, asked: answer(b"", status, location=location)

    def paths(self):
        return [path for _, path, _ in self.asked]

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection):
        with self._lock:
            self.open += 1
        path = "?"
        try:
            if self.tls:
                connection = self.tls.wrap_socket(connection, server_side=True)
            head = b""
            while b"\r\n\r\n" not in head:
                part = connection.recv(65536)
                if not part:
                    return
                head += part
            first, *lines = head.decode("latin-1").split("\r\n")
            method, path, _ = first.split(" ")
            headers = dict(line.lower().split(": ", 1) for line in lines if ": " in line)
            self.asked.append((method, path, headers))
            route = self.routes.get(path.partition("?")[0], lambda line, asked: answer(b"nothing", "404 Not Found"))
            said = route(method, headers)
            for part in [said] if isinstance(said, bytes) else said:
                connection.sendall(part)
        except OSError:
            self.ended.append(path)
        finally:
            connection.close()
            with self._lock:
                self.open -= 1


def answer(body=b"", status="200 OK", *, length=None, **headers):
    """Return the bytes of a response; the length is correct unless another is given."""
    told = {"content-length": str(len(body)) if length is None else length, **headers}
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in told.items() if value != "")
    return f"HTTP/1.1 {status}\r\n{lines}\r\n".encode("latin-1") + body


class Nobody:
    """A judge without an administrator: undeclared URLs are locked."""

    def decide(self, question):
        from democrai_sandbox.policy import EXTERNAL_URL_LOCKED, AccessDecision, DecisionCode

        return AccessDecision(False, DecisionCode.NOT_ENABLED, False, EXTERNAL_URL_LOCKED)


class Host:
    """A complete host: the access service, the media service and its SDK services."""

    def __init__(self, world, *, decides=True, tls=None, cache_key=None, **limits):
        from democrai_sandbox.runtime import sdk_services
        from democrai_sandbox.runtime.media.service import Media, MediaServices
        from democrai_sandbox.runtime.media.values import MediaLimits

        self.data = os.path.join(world.base, "data")
        os.makedirs(self.data, exist_ok=True)
        self.access = None
        judge = self._open_access(world) if decides else Nobody()
        self.media = Media(judge, data_dir=self.data, limits=MediaLimits(**limits), tls=tls, cache_key=cache_key)
        sdk_services.install(MediaServices(self.media).services())

    def _open_access(self, world):
        from democrai_sandbox import access_changed, configure_guard
        from democrai_sandbox.access import Access, AccessSettings
        from democrai_sandbox.runtime.access_environment import GuardSurroundings

        state = os.path.join(world.base, "state")
        os.makedirs(state)
        settings = AccessSettings(database=database(state), key_file=f"{state}/keys", poll_seconds=0.1)
        self.access = Access(settings, GuardSurroundings())
        configure_guard(decider=self.access.service, protected_paths=[state])
        self.access.node.on_change(access_changed)
        self.access.start()
        return self.access.service

    @property
    def cache(self):
        return os.path.join(self.data, "modules", "gallery", "media-cache")

    def entries(self):
        return sorted(os.listdir(self.cache)) if os.path.isdir(self.cache) else []

    def asker(self, *targets, **identity):
        """Return the module as the host itself acts for it."""
        from democrai_sandbox.policy import parse_access
        from democrai_sandbox.runtime.media.values import Asker

        rules = parse_access([rule(target) for target in targets], base=None)
        return Asker.of_module("gallery", rules, **{"user_id": "uma", "session_key": "s1", **identity})

    def as_module(self, function, *args, targets=(), paths=(), **identity):
        """Run a function like the module's code: guarded, with these URLs declared."""
        from democrai_sandbox import process_guard_context

        given = {"user_id": "uma", "session_key": "s1", **identity}
        guard = process_guard_context(
            subject="gallery", access=[rule(target) for target in targets], allowed_paths=list(paths), **given
        )
        return guard.run(function, *args)

    def run_module(self, function, **more):
        """Run a coroutine function like the module's code, on the host's own loop."""

        async def serve():
            self.media.open()
            return await self.as_module(function, **more)

        return asyncio.run(serve())

    def admin(self, act, *args, **details):
        """Decide as an administrator."""
        from democrai_sandbox.access import Caller
        from democrai_sandbox.runtime.access_environment import serving

        with serving(Caller(user_id="ada", role="super")):
            return getattr(self.access.administration, act)(*args, **details)

    def pending(self):
        return [[str(item.access.subject), item.access.target] for item in self.admin("pending_requests").items]

    def chains(self):
        return [item.chain for item in self.admin("pending_requests").items]

    def close(self):
        self.media.close()
        if self.access:
            self.access.stop()


def database(folder):
    """Return the URL of a database in a folder: a copy of the prepared one."""
    shutil.copyfile(os.environ["PREPARED_DATABASE"], os.path.join(folder, "access.db"))
    return f"sqlite:///{folder}/access.db"


def rule(target):
    return {"resource_type": "network", "operation": "receive", "target": target}


async def told(awaitable):
    """Return an outcome: the value, or the class and text of the error."""
    try:
        return await awaitable
    except Exception as error:
        return said(error)


def said(error):
    return f"{type(error).__name__}: {error}"


def soon(condition, seconds=30.0, pause=0.01):
    """Wait for a condition; return whether it became true."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(pause)
    return True


def states():
    """Return the number of live guards after everything was released."""
    import gc

    from democrai_sandbox.guard import live_states

    soon(lambda: live_states() == 0 or (gc.collect() >= 0 and live_states() == 0), pause=0.05)
    return live_states()
