"""A pytest plugin: ``--workers N`` collects the tests once and runs them in N forks of the process that did.

Each worker has a contiguous part of the tests, because neighbouring tests share servers, databases and browsers. A
worker that is done takes over half of the largest part that is left. A worker that crashes fails its test, and another
one goes on with the rest.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import itertools
import math
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import deque
from multiprocessing import Pipe
from multiprocessing.connection import wait
from pathlib import Path

import pytest
from _pytest._io import TerminalWriter
from _pytest.reports import TestReport

AHEAD = 3
"""How many tests a worker knows of: the running one, the next one, which decides what is torn down, and one more."""
GRACE = 20
"""Seconds that workers have to tear down their fixtures when the run is interrupted."""


LARGEST = 0.4
"""The part of a time limit that one file may take."""
CRASHES = 50
"""With more workers than this, the run is given up."""


def pytest_addoption(parser):
    """Add the number of workers."""
    parser.addoption("--workers", type=int, default=0, metavar="N", help="run the tests in N forks of this process")
    parser.addoption("--seconds", type=float, metavar="S", help="run only as many tests as took S seconds before")
    parser.addoption("--shuffle", metavar="SEED", help="run the files, and the tests of each file, in another order")


def pytest_configure(config):
    """Interrupt the run on SIGTERM and SIGHUP as on Ctrl-C, so that fixtures are torn down."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _interrupt)


def _interrupt(number, frame):
    raise KeyboardInterrupt(signal.Signals(number).name)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Shuffle the tests, or choose those that fit into a time limit."""
    if seed := config.getoption("shuffle"):
        _shuffle(items, random.Random(seed))
    if config.getoption("seconds") is not None:
        _choose(config, items, config.getoption("seconds"))


def _shuffle(items, chance):
    """Shuffle files and the tests of each; those of one file stay together, because they share fixtures."""
    files = [list(tests) for _, tests in itertools.groupby(items, key=lambda item: item.path)]
    chance.shuffle(files)
    for tests in files:
        chance.shuffle(tests)
    items[:] = itertools.chain.from_iterable(files)


def _choose(config, items, left):
    """Choose files in their order; of a file that does not fit, tests from all parts of it."""
    durations = Durations(config)
    chosen, most = [], left * LARGEST
    for _, group in itertools.groupby(items, key=lambda item: item.path):
        tests = list(group)
        needed = sum(map(durations.of, tests))
        step = max(1, math.ceil(needed / min(left, most))) if left > 0 else len(tests) + 1
        chosen += tests[step - 1 :: step]
        left -= needed / step
    config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
    items[:] = chosen


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    """Run the collected tests in workers."""
    workers = session.config.getoption("workers")
    broken = session.testsfailed and not session.config.option.continue_on_collection_errors
    if workers < 1 or session.config.option.collectonly or not session.items or broken:
        return None
    Run(session, min(workers, len(session.items))).run()
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True


class Run:
    """The process that collected the tests: gives them out and receives the reports."""

    def __init__(self, session, number):
        self.session = session
        self.config = session.config
        # Short paths: some tests have unix sockets below them, or look for a path in a line of limited length.
        self.base = os.environ.get("RUN_FOLDER") or self.config._tmp_path_factory.getbasetemp()
        self.durations = Durations(self.config)
        parts = _parts([self.durations.of(item) for item in session.items], number)
        self.waiting = [deque(part) for part in parts]
        self.workers = {}
        self.made = 0
        # Tests of several files run at the same time: a dot for each, instead of a line for each change of file.
        if terminal := self.config.pluginmanager.getplugin("terminalreporter"):
            terminal.showfspath = False

    def run(self):
        """Run all tests; end the workers however that ends."""
        # The workers share the collected tests: their collector does not look through them, which would copy them.
        gc.collect()
        gc.freeze()
        try:
            for lane in range(len(self.waiting)):
                self._start(lane)
            while self.workers and not (self.session.shouldfail or self.session.shouldstop):
                for link in wait(list(self.workers)):
                    self._hear(self.workers[link])
        finally:
            self._end()
            self.durations.save()

    def _start(self, lane):
        ours, theirs = Pipe()
        self.made += 1
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            _be_worker(self.session, theirs, self.base, [ours, *self.workers])
        theirs.close()
        worker = Worker(pid, ours, lane)
        self.workers[ours] = worker
        for _ in range(AHEAD):
            self._give(worker)

    def _give(self, worker):
        """Tell a worker its next test, or that there is none."""
        if worker.is_told_all:
            return
        part = self.waiting[worker.lane]
        if not part:
            part.extend(self._stolen())
        if part:
            index = part.popleft()
            worker.given.append(index)
            worker.send(index)
        else:
            worker.is_told_all = True
            worker.send(None)

    def _stolen(self):
        """Take the later half, by time, of the largest part that is left."""
        weights = [sum(self.durations.of(self.session.items[index]) for index in part) for part in self.waiting]
        largest = self.waiting[weights.index(max(weights))]
        if len(largest) < 2:  # its own worker is about to take it
            return ()
        half, found = max(weights) / 2, deque()
        while largest and (not found or half > 0):
            index = largest.pop()
            half -= self.durations.of(self.session.items[index])
            if half < 0 and found:
                largest.append(index)
                break
            found.appendleft(index)
        return found

    def _hear(self, worker):
        hook = self.config.hook
        try:
            message = worker.link.recv()
        except (EOFError, ConnectionResetError):
            self._lost(worker)
            return
        if "report" in message:
            report = hook.pytest_report_from_serializable(config=self.config, data=message["report"])
            hook.pytest_runtest_logreport(report=report)
        elif "warning" in message:
            self._warn(message["warning"])
        elif "begun" in message:
            item = self.session.items[message["begun"]]
            hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        else:
            worker.given.remove(message["done"])
            item = self.session.items[message["done"]]
            self.durations.note(item, message["seconds"])
            hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
            self._give(worker)

    def _warn(self, told):
        text = f"{told['category']}: {told['message']}"
        self.config.get_terminal_writer().line(f"\nwarning in {told['nodeid']}: {text}")

    def _lost(self, worker):
        """Note the end of a worker; when it was not the proper one, fail its test and start another."""
        del self.workers[worker.link]
        worker.link.close()
        status = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        if worker.is_told_all and not worker.given and status == 0:
            return
        reason = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        if not worker.given:
            self.session.shouldfail = f"a worker ended while it tore down its fixtures: {reason}"
            return
        item = self.session.items[worker.given[0]]
        text = f"the worker that ran this test ended: {reason}"
        report = TestReport(item.nodeid, item.location, {}, "failed", text, "call")
        self.config.hook.pytest_runtest_logreport(report=report)
        if self.made > CRASHES:
            self.session.shouldfail = "too many workers have crashed"
            return
        self.waiting[worker.lane].extendleft(reversed(list(worker.given)[1:]))
        self._start(worker.lane)

    def _end(self):
        """End workers that still run: ask them first, so that they remove what they made."""
        for worker in self.workers.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGTERM)
        deadline = time.monotonic() + GRACE
        for worker in self.workers.values():
            while os.waitpid(worker.pid, os.WNOHANG)[0] == 0:
                if time.monotonic() > deadline:
                    os.kill(worker.pid, signal.SIGKILL)
                    os.waitpid(worker.pid, 0)
                    break
                time.sleep(0.02)
            worker.link.close()
        self.workers.clear()


class Worker:
    """A worker, as the process that collected the tests sees it."""

    def __init__(self, pid, link, lane):
        self.pid = pid
        self.link = link
        self.lane = lane
        self.given = deque()
        self.is_told_all = False

    def send(self, index):
        """Tell it the next test; one that has crashed is noticed when it is read from."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.link.send(index)


class Durations:
    """How long tests took in earlier runs, kept in pytest's cache; a test that is new gets the mean of its file."""

    KEY = "democrai/durations-{}.{}".format(*sys.version_info)

    def __init__(self, config):
        self._cache = getattr(config, "cache", None)
        self._known = self._cache.get(self.KEY, {}) if self._cache else {}
        self._default = sum(self._known.values()) / len(self._known) if self._known else 0.1

    def of(self, item):
        return self._known.get(item.nodeid, self._default)

    def note(self, item, seconds):
        self._known[item.nodeid] = round(seconds, 3)

    def save(self):
        if self._cache:
            self._cache.set(self.KEY, self._known)


def _parts(weights, number):
    """Cut the numbers of all tests into contiguous parts of about the same weight."""
    share, parts, used = sum(weights) / number, [[] for _ in range(number)], 0.0
    for index, weight in enumerate(weights):
        parts[min(number - 1, int(used / share) if share else 0)].append(index)
        used += weight
    return parts


# --- in a worker ------------------------------------------------------------------------------------------------------


def _be_worker(session, link, base, others):
    """Run the tests that come over the link, in a fork; does not return."""
    status = 1
    try:
        # Only this process's own exit functions are run at its end.
        atexit._clear()
        for other in others:
            other.close()
        _settle(session, base)
        _work(session, link)
        status = 0
    except (KeyboardInterrupt, EOFError):  # the run was interrupted, or the process that collected the tests has died
        status = 0
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    finally:
        _leave(session, status)


def _settle(session, base):
    """Give a worker its own captured output, temp folder and signals."""
    config = session.config
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    config.pluginmanager.unregister(name="terminalreporter")
    config.pluginmanager.register(_NoTerminal(), "terminalreporter")
    config._tmp_path_factory._basetemp = Path(tempfile.mkdtemp(prefix="w", dir=base))


class _NoTerminal:
    """Takes what plugins write to the terminal; the parent has the one that shows something."""

    def __init__(self):
        self._tw = TerminalWriter(Path(os.devnull).open("w"))


def _work(session, link):
    config = session.config
    reporter = _Reporter(config, link)
    config.pluginmanager.register(reporter, "worker-reporter")
    queue, told_all = deque(), False
    while True:
        while len(queue) < 2 and not told_all:
            index = link.recv()
            told_all = index is None
            if index is not None:
                queue.append(index)
        if not queue:
            return
        index = queue.popleft()
        following = session.items[queue[0]] if queue else None
        reporter.send(begun=index)
        begun = time.perf_counter()
        config.hook.pytest_runtest_protocol(item=session.items[index], nextitem=following)
        reporter.send(done=index, seconds=time.perf_counter() - begun)


class _Reporter:
    """Sends the reports of a worker."""

    def __init__(self, config, link):
        self._config = config
        self._link = link

    def send(self, **message):
        self._link.send(message)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report):
        self.send(report=self._config.hook.pytest_report_to_serializable(config=self._config, report=report))

    def pytest_warning_recorded(self, warning_message, when, nodeid, location):
        told = {"message": str(warning_message.message), "category": warning_message.category.__name__}
        self.send(warning=told | {"nodeid": nodeid})


def _leave(session, status):
    """Tear down what is left, run the exit functions, and end without the rest of pytest, which is the parent's."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        session._setupstate.teardown_exact(None)
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        status = status or 1
    atexit._run_exitfuncs()
    with contextlib.suppress(Exception):
        session.config.pluginmanager.getplugin("capturemanager").stop_global_capturing()
    os._exit(status)
