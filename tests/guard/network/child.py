"""Child process of a network test: the functions of every guard test, and functions for the network."""

from __future__ import annotations

import importlib.util
import json
import os
import sys


def _words():
    """Return the child module of the other guard tests."""
    path = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "child.py")
    spec = importlib.util.spec_from_file_location("child", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules["child"] = module
    spec.loader.exec_module(module)
    return module


words = _words()
SCHEMES = {"https": "https", "http2": "https"}


class World(words.World):
    """Paths of a body, and its servers."""

    def __init__(self, spec):
        super().__init__(spec)
        self.places = spec["places"]
        self.guarded = spec["guarded"]
        del self.guard  # the base class stores arguments under the name of a method here

    def address(self, place):
        """Return host and port of a server."""
        host, port = self.places[place]
        return host, port

    def port(self, place):
        """Return the port of a server."""
        return self.places[place][1]

    def at(self, place):
        """Return a server in the form of a rule: host:port."""
        return "{}:{}".format(*self.places[place])

    def url(self, place, path="", host=None):
        """Return a URL of a server, by its address unless another host is named."""
        own, port = self.places[place]
        scheme = SCHEMES.get(place, "http")
        shown = "" if port == {"http": 80, "https": 443}[scheme] else f":{port}"
        return f"{scheme}://{host or own}{shown}{path}"

    def tls(self):
        """Return a client's context that trusts the tests' authority."""
        import ssl

        return ssl.create_default_context(cafile=self.places["ca"])

    def guard(self, *rules, **more):
        """Return a guard with these rules, which may use the root and read the authority's certificate."""
        if not self.guarded:
            return NoGuard()
        from democrai_sandbox import process_guard_context

        given = {"subject": "demo", "allowed_paths": [self.root], **more}
        return process_guard_context(access=[*rules, rule(self.places["ca"], "read", kind="filesystem")], **given)

    def under(self, rules, actions, **more):
        """Run each action in one guard with these rules; return the results and the arrivals at all servers."""
        self.journal()
        seen = self.guard(*rules, **more).run(outcomes, actions)
        return {"seen": seen, "arrived": self.journal()}

    def journal(self):
        """Return the arrivals at the servers since the last call. Not for use inside a guard."""
        import socket

        with socket.create_connection(self.address("control"), timeout=10) as asking:
            asking.sendall(b"GET / HTTP/1.1\r\nHost: control\r\nConnection: close\r\n\r\n")
            with asking.makefile("rb") as answer:
                return json.loads(answer.read().partition(b"\r\n\r\n")[2])


class NoGuard:
    """Replacement of a guard in tests that show that their body works."""

    def run(self, function, *arguments):
        return function(*arguments)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def rule(target, *operations, kind="network"):
    """Return a manifest entry."""
    operation = operations[0] if len(operations) == 1 else list(operations)
    return {"resource_type": kind, "operation": operation, "target": target}


def outcomes(actions):
    """Run each action of a table, coroutine functions on a separate loop; return the results."""
    return {name: outcome(action) for name, action in actions.items()}


def outcome(action, *arguments):
    """Run one action: return its value (None is `ok`), or the error in a few words."""
    try:
        result = action(*arguments)
        if hasattr(result, "__await__"):
            result = run_async(result)
    except Exception as error:
        return tell(error)
    return "ok" if result is None else result


def run_async(awaitable, loop_factory=None):
    """Await a coroutine on a new loop."""
    import asyncio

    async def wait():
        return await awaitable

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(wait())


def tell(error):
    """Return a denial as `denied <operation> <target>`, other errors as in the other guard tests."""
    if type(error).__name__ == "NetworkDenied":
        return f"denied {error.operation} {error.target}"
    if isinstance(error, OSError) and (error.errno or 0) < 0:
        return f"{type(error).__name__}:{error.strerror}"  # the resolver uses different numbers
    return words.describe(error)


def denial_behind(error):
    """Return the denial that a library wrapped in other errors, or the error itself."""
    pending, seen = [error], []
    while pending:
        one = pending.pop(0)
        if type(one).__name__ == "NetworkDenied":
            return one
        seen.append(one)
        around = (one.__cause__, one.__context__, getattr(one, "reason", None), *getattr(one, "exceptions", ()))
        pending += [other for other in around if isinstance(other, BaseException) and other not in seen]
    return error


main, prepare = words.main, words.prepare
words.World = World
words.PROVIDED |= {made.__name__: made for made in (World, rule, outcomes, outcome, run_async, tell, denial_behind)}

if __name__ == "__main__":
    main()
