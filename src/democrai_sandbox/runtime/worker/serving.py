"""Threads of a worker: one runs calls as they arrive, one reads messages that must not wait for them.

The host sends a call over the *lane* when nothing runs there. The thread that reads the lane runs the call directly, so
no other thread has to wake up. All other messages come over the *control* socket, whose thread runs no code of the
subject: concurrent calls, which go to a few more threads, and cancellations, answers and changes. A subject that
declares a coroutine function has an event loop on its lane instead, and all its plain functions run on those threads.

Guarded code can inspect the frames below its own. So the functions that run it, ``serve_plainly`` and ``_run_task``,
reference only the guard, objects of the subject, and ``Door`` objects, which expose nothing.
"""

from __future__ import annotations

import asyncio
import os
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import TamperDenied
from democrai_sandbox.guard import access_changed, door
from democrai_sandbox.runtime.outcomes import capture, capture_async

from .calls import Call

if TYPE_CHECKING:
    from collections.abc import Callable

    from democrai_sandbox.guard import Door

    from .calls import Calls
    from .lines import Line
    from .remote import Desk
    from .running import Job, Runner


# ---- frames below the subject's code ---------------------------------------------------------------------------------


def serve_plainly(take: Door, give: Door) -> None:
    """Run plain functions one after the other, on this thread, until the process ends."""
    while True:
        number, guard, function, args, params = take()
        give(number, guard.run(capture, function, *args, **params))


def serve_on_a_loop(loop: asyncio.AbstractEventLoop, descriptor: int, read: Door) -> None:
    """Run coroutines as concurrent tasks, on this thread."""
    loop.add_reader(descriptor, read)
    loop.run_forever()


async def _run_task(number: int, take: Door, give: Door) -> None:
    _, guard, function, args, params = take(number)
    try:
        outcome = await guard.run(capture_async, function, *args, **params)
    except asyncio.CancelledError:
        outcome = None
    give(number, outcome)


# ---- functions behind the doors --------------------------------------------------------------------------------------


def _ours(function: Callable[..., Any]) -> Door:
    """Wrap a function of the worker so that the subject can neither inspect nor call it."""

    def serve(view: object, *args: Any) -> Any:
        if view is not None:
            raise TamperDenied("worker")
        return function(*args)

    return door(serve)


def plain_work(lane: Line, runner: Runner) -> tuple[Door, Door]:
    """Return the functions with which ``serve_plainly`` serves the lane."""

    def take() -> Job:
        message = lane.receive()
        if message is None:
            os._exit(0)
        return runner.begin(Call(message))

    def give(number: int, outcome: Any) -> None:
        lane.reply(number, runner.end(number, outcome))

    return _ours(take), _ours(give)


def loop_work(lane: Line, runner: Runner, loop: asyncio.AbstractEventLoop) -> Door:
    """Return the callback with which the loop reads the lane."""
    waiting: dict[int, Call] = {}
    tasks: set[asyncio.Task[None]] = set()

    def take(number: int) -> Job:
        call = waiting.pop(number)
        call.task = asyncio.current_task()
        return runner.begin(call)

    def give(number: int, outcome: Any) -> None:
        lane.reply(number, runner.end(number, outcome))

    def read() -> None:
        messages = lane.receive_now()
        if messages is None:
            os._exit(0)
        for message in messages:
            call = Call(message)
            waiting[call.number] = call
            task = loop.create_task(_run_task(call.number, take_door, give_door))
            tasks.add(task)
            task.add_done_callback(forget)

    take_door, give_door, forget = _ours(take), _ours(give), _ours(tasks.discard)
    return _ours(read)


class Hands:
    """Threads that run plain functions while the lane is busy, started on demand."""

    def __init__(self, runner: Runner, line: Line, most: int) -> None:
        """Set the socket for replies, and the maximum number of threads."""
        self._runner = runner
        self._line = line
        self._most = most
        self._work: SimpleQueue[Call] = SimpleQueue()
        self._started = 0
        self._busy = 0
        self._counting = threading.Lock()
        self._doors = _ours(self._next), _ours(self._done)

    def take(self, call: Call) -> None:
        """Run a call as soon as a thread is free."""
        with self._counting:
            self._busy += 1
            if self._busy > self._started and self._started < self._most:
                self._started += 1
                name = f"worker-{self._started}"
                threading.Thread(name=name, target=serve_plainly, args=self._doors, daemon=True).start()
        self._work.put(call)

    def _next(self) -> Job:
        return self._runner.begin(self._work.get())

    def _done(self, number: int, outcome: Any) -> None:
        self._line.reply(number, self._runner.end(number, outcome))
        with self._counting:
            self._busy -= 1


class Control:
    """Reads the control socket until the host is gone, which ends the process."""

    def __init__(self, line: Line, desk: Desk, calls: Calls) -> None:
        """Deliver answers to ``desk``, and cancellations to ``calls``."""
        self._line = line
        self._desk = desk
        self._calls = calls
        self.take: Callable[[Call], None] | None = None
        """Handler of calls; none arrive before the worker has reported that it is ready."""
        self.compare: Callable[[str, list[str]], None] | None = None
        """Handler of candidates."""

    def start(self) -> None:
        """Start reading on a thread, wrapped so that a listing of the threads exposes nothing."""
        threading.Thread(name="worker-control", target=_ours(self._serve), daemon=True).start()

    def _serve(self) -> None:
        try:
            while (message := self._line.receive()) is not None:
                self._handle(message)
        finally:
            os._exit(0)

    def _handle(self, message: list[Any]) -> None:
        kind, *facts = message
        if kind == "answer":
            self._desk.answered(*facts)
        elif kind == "settle":
            self._desk.settled(*facts)
        elif kind == "call" and self.take is not None:
            self.take(Call(message))
        elif kind == "cancel":
            self._cancel(*facts)
        elif kind == "forget":
            self._calls.forget(*facts)
        elif kind == "credit":
            self._credit(*facts)
        elif kind == "changed":
            access_changed()
        elif kind == "candidate" and self.compare is not None:
            self.compare(*facts)
        elif kind == "stop":
            os._exit(0)

    def _cancel(self, number: int) -> None:
        """Cancel a task; a plain function can only check a flag."""
        call = self._calls.cancel(number)
        if call is None:
            return
        if call.task is not None:
            call.task.get_loop().call_soon_threadsafe(call.task.cancel)
        elif call.wanted is not None:
            call.wanted()

    def _credit(self, number: int, more: int) -> None:
        call = self._calls.get(number)
        if call is not None and call.wanted is not None:
            for _ in range(more):
                call.wanted()
