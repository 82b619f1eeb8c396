"""Standard library: profiling, tracing, doctest, inspect, traceback, pdb and logging."""

from __future__ import annotations


def main(folder: str) -> object:
    import cProfile
    import doctest
    import faulthandler
    import inspect
    import io
    import json
    import logging
    import logging.handlers
    import os
    import pdb
    import pstats
    import sys
    import timeit
    import trace
    import traceback
    import tracemalloc
    import warnings

    def square(x: int) -> int:
        """Return the square.

        >>> square(3)
        9
        >>> square("a")
        Traceback (most recent call last):
        ...
        TypeError: can't multiply sequence by non-int of type 'str'
        """
        result = x * x
        return result

    def loop(n: int) -> int:
        return sum(square(i) for i in range(n))

    profile = cProfile.Profile()
    total = profile.runcall(loop, 10)
    path = os.path.join(folder, "profile.out")
    profile.dump_stats(path)
    report = io.StringIO()
    pstats.Stats(path, stream=report).sort_stats("cumulative").print_stats("square")
    calls = [line.split()[0] for line in report.getvalue().splitlines() if line.endswith("(square)")]
    assert calls == ["10"]

    events = []

    def tracer(frame: object, event: str, argument: object) -> object:
        if frame.f_code is square.__code__:
            events.append(event)
            return tracer
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        square(2)
    finally:
        sys.settrace(before)
    profiled = []
    sys.setprofile(lambda frame, event, argument: profiled.append(event) if frame.f_code is square.__code__ else None)
    try:
        square(2)
    finally:
        sys.setprofile(None)

    runner = doctest.DocTestRunner(verbose=False)
    for test in doctest.DocTestFinder().find(square, "square", module=False, globs={"square": square}):
        runner.run(test)
    counter = trace.Trace(count=1, trace=0)
    counted = counter.runfunc(square, 4)
    lines = [count for (name, _), count in counter.results().counts.items() if name == square.__code__.co_filename]

    try:
        try:
            square(None)
        except TypeError as error:
            raise ValueError("outer") from error
    except ValueError as error:
        text = traceback.format_exc()
        summary = traceback.TracebackException.from_exception(error, capture_locals=True)
        last = traceback.extract_tb(error.__traceback__)[-1]

    output = io.StringIO()
    debugger = pdb.Pdb(stdin=io.StringIO("c\n"), stdout=output, readrc=False)
    debugged = debugger.runcall(square, 5)
    stepping = io.StringIO()
    stepped = pdb.Pdb(stdin=io.StringIO("n\np x + 1\nw\nc\n"), stdout=stepping, readrc=False).runcall(square, 6)
    sys.settrace(before)

    log_path = os.path.join(folder, "app.log")
    logger = logging.getLogger("use_stdlib")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    handler = logging.handlers.RotatingFileHandler(log_path, maxBytes=200, backupCount=2, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    logger.addHandler(handler)
    logger.info("hello %s", "world")
    try:
        1 / 0
    except ZeroDivisionError:
        logger.exception("failed")
    logger.removeHandler(handler)
    handler.close()

    with open(os.path.join(folder, "fault.txt"), "w", encoding="utf-8") as file:
        faulthandler.dump_traceback(file, all_threads=False)
    tracemalloc.start()
    kept = [bytes(1000) for _ in range(10)]
    measured = tracemalloc.get_traced_memory()[0] > 5000 and len(kept) == 10
    tracemalloc.stop()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("careful", UserWarning, stacklevel=1)
    return {
        "total": total,
        "events": events,
        "profiled": profiled,
        "doctest": [runner.failures, runner.tries],
        "trace": [counted, lines],
        "source": inspect.getsource(json.dumps).splitlines()[0],
        "signature": str(inspect.signature(square)),
        "frame": inspect.currentframe().f_code.co_name,
        "traceback": ["TypeError" in text, "direct cause" in text, len(list(summary.format())) > 3, last.name],
        "pdb": [debugged, "(Pdb)" in output.getvalue(), stepped, "(Pdb) 7" in stepping.getvalue()],
        "logs": sorted(name for name in os.listdir(folder) if name.startswith("app.log")),
        "fault": os.path.getsize(os.path.join(folder, "fault.txt")) > 10,
        "measured": measured,
        "warned": [str(item.message) for item in caught],
        "timed": timeit.timeit("1 + 1", number=10) >= 0,
    }
