"""Node as a process: the service is its guard's decider; commands and results are lines of JSON."""

from __future__ import annotations

import http.client
import json
import os
import random
import sys
import threading
import time
from datetime import timedelta
from urllib.parse import urlsplit

from democrai_sandbox import access_changed, configure_guard, process_guard_context
from democrai_sandbox.access.administration import Administration
from democrai_sandbox.access.caller import Caller
from democrai_sandbox.access.checks import AccessService, PendingLimits
from democrai_sandbox.access.events import open_bus
from democrai_sandbox.access.node import AccessNode
from democrai_sandbox.access.store import open_store
from democrai_sandbox.access.values import DecisionEffect
from democrai_sandbox.policy import Subject
from democrai_sandbox.runtime.access_environment import GuardSurroundings, serving

_PAUSE = 0.005
_ROOT = Caller("root", role="super")
_saying = threading.Lock()


def say(**what):
    """Write a line. The reported event has happened when it is read."""
    line = json.dumps({**what, "at": time.monotonic()}) + "\n"
    with _saying:
        sys.stdout.write(line)
        sys.stdout.flush()


def fetch(place):
    """Access a place as a subject: GET a URL, or read a file."""
    if place.startswith("/"):
        with open(place, "rb") as file:
            return file.read().decode()
    url = urlsplit(place)
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=10)
    try:
        connection.request("GET", url.path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def attempt(place):
    """Return the result of an access in one word: ``ok``, ``denied``, or the error that is not a denial."""
    try:
        fetch(place)
    except PermissionError as error:
        decision = getattr(error, "decision", None)
        return {"came": "denied", "code": decision and decision.code, "request": decision and decision.request_id}
    except Exception as error:
        return {"came": type(error).__name__}
    return {"came": "ok"}


class Program:
    """Commands of the node."""

    def __init__(self, settings):
        self.store = open_store(settings["store"])
        bus = open_bus(settings["bus"], **settings["bus_settings"])
        self.node = AccessNode(self.store, bus, poll_seconds=settings.get("poll", 1.0))
        surroundings = GuardSurroundings()
        self.service = AccessService(
            self.node, surroundings, limits=PendingLimits(new_requests=10**9, pending=0, counting_seconds=0.5)
        )
        self.administration = Administration(self.node, surroundings)
        self.node.on_change(access_changed)
        configure_guard(decider=self.service, runtime_code=[GuardSurroundings.ask, GuardSurroundings.outside])
        self.node.start()
        self.ending = threading.Event()
        self.workers = []

    def guarded(self, user, session, function, *args):
        """Run a function in one activation of the subject."""
        guard = process_guard_context(subject="demo", user_id=user, session_key=session)
        return guard.run(function, *args)

    # ---- commands ----------------------------------------------------------------------------------------------------

    def ask(self, place, user="ann", session="s1"):
        return self.guarded(user, session, self._ask, place)

    def fetch(self, place, user="ann", session="s1"):
        return self.guarded(user, session, attempt, place)

    def watch(self, place, until, user="ann", session="s1", seconds=20.0):
        """Repeat an access in one activation until it has this result; return the time."""

        def trying():
            begun = time.monotonic()
            attempts = 0
            while time.monotonic() - begun < seconds:
                attempts += 1
                if attempt(place)["came"] == until:
                    return {"since": time.monotonic(), "attempts": attempts}
                if attempts == 1:
                    say(watching=place)
                time.sleep(_PAUSE)
            raise TimeoutError(f"{place} did not come to {until}")

        return self.guarded(user, session, trying)

    def approve(self, request, target=None):
        with serving(_ROOT):
            return self.administration.approve_permanently(request, target=target).decision.id

    def approve_for_session(self, request):
        with serving(_ROOT):
            return self.administration.approve_for_session(request).decision.id

    def decide_unasked(self, place, effect, seconds=None):
        lifetime = None if seconds is None else timedelta(seconds=seconds)
        subject = Subject("module", "demo")
        with serving(_ROOT):
            made = self.administration.decide_unasked(
                subject, **_wish(place), effect=DecisionEffect(effect), lifetime=lifetime
            )
            return made.decision.id

    def deny(self, request):
        with serving(_ROOT):
            return self.administration.deny_external_access(request).decision.id

    def revoke(self, decision):
        with serving(_ROOT):
            return self.administration.revoke(decision).id

    def end_session(self, session):
        return self.administration.end_session(session)

    def status(self):
        status = self.node.status
        return {
            "node": status.node,
            "generation": status.generation,
            "store_reachable": status.store_reachable,
            "bus_connected": status.bus_connected,
        }

    def answers(self, places, user="ann", session="s1"):
        """Return the decisions about places, and whether guarded code can access them, without filing requests."""

        def look():
            return [[self._ask(place, register=False)["code"], attempt(place)["came"]] for place in places]

        return self.guarded(user, session, look)

    def load(self, folder, seed):
        """Request files, decide about some of them, and try to read them all, until stopped."""
        worker = threading.Thread(target=self._work, args=(folder, random.Random(seed)), daemon=True)
        self.workers.append(worker)
        worker.start()

    def rest(self):
        self.ending.set()
        for worker in self.workers:
            worker.join()
        self.workers.clear()
        self.ending.clear()

    def stop(self):
        self.rest()
        self.node.stop()
        self.store.close()

    # ---- parts -------------------------------------------------------------------------------------------------------

    def _ask(self, place, *, register=True):
        told = self.service.check_external_access(**_wish(place), register_request=register)
        return {"code": told.code, "allowed": told.allowed, "request": told.request_id}

    def _work(self, folder, chance):
        known = []
        number = 0
        while not self.ending.is_set():
            number += 1
            try:
                self._step(f"{folder}/{number}", known, chance)
            except Exception as error:
                say(failed=type(error).__name__)
                time.sleep(0.02)
            time.sleep(_PAUSE)
            if known:
                self._try_reading(chance.sample(known, min(5, len(known))))

    def _step(self, place, known, chance):
        """Request a new file; report each act after it was done."""
        with open(place, "w") as file:
            file.write("data")
        known.append(place)
        asked = self.guarded("ann", "s1", self._ask, place)
        if not asked["request"]:
            say(unasked=asked)
            return
        say(acknowledged="request", request=asked["request"], place=place)
        act = chance.choice([self.approve, self.approve_for_session, self.deny, None])
        if act is not None:
            decision = act(asked["request"])
            say(acknowledged=act.__name__, request=asked["request"], place=place, decision=decision)
            if chance.random() < 0.3:
                self.revoke(decision)
                say(acknowledged="revoke", request=asked["request"], place=place, decision=decision)

    def _try_reading(self, places):
        """Read approved and unapproved files; report those that could be read."""
        for place, came in self.guarded("ann", "s1", lambda: [(place, attempt(place)["came"]) for place in places]):
            if came == "ok":
                say(allowed=place)


def _wish(place):
    if place.startswith("/"):
        return {"resource_type": "filesystem", "operation": "read", "target": place}
    return {"resource_type": "network", "operation": "receive", "target": place}


def serve(program, command):
    number, name = command.pop("number"), command.pop("do")
    try:
        say(number=number, answer=getattr(program, name)(**command))
    except Exception as error:
        say(number=number, error=type(error).__name__, text=str(error))


def main():
    program = Program(json.loads(sys.argv[1]))
    say(started=os.getpid())
    for line in sys.stdin:
        command = json.loads(line)
        if command["do"] == "stop":
            serve(program, command)
            break
        threading.Thread(target=serve, args=(program, command), daemon=True).start()


main()
