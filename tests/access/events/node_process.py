"""Node as a process: the command line names its bus; commands and results are lines of JSON."""

from __future__ import annotations

import json
import os
import sys
import threading
import time

from democrai_sandbox.access.events import open_bus


def main():
    kind, settings = sys.argv[1], json.loads(sys.argv[2])
    out = threading.Lock()

    def tell(name, value):
        with out:
            sys.stdout.write(json.dumps([name, value]) + "\n")
            sys.stdout.flush()

    bus = open_bus(kind, **settings)
    bus.start(lambda generation: tell("heard", generation))
    for line in sys.stdin:
        question, *arguments = json.loads(line)
        if question == "publish":
            bus.publish(*arguments)
            tell(question, True)
        elif question == "connected":
            tell(question, bus.connected)
        elif question == "is_hub":
            tell(question, getattr(bus, "_hub", None) is not None)
        elif question == "fork":
            tell(question, fork(bus, *arguments))
    bus.stop()
    tell("threads", threading.active_count())


def fork(bus, seconds):
    """Fork a child that lives for a while and tries the bus methods."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        with open(reading) as answer:
            return [child, answer.read()]
    sys.stdout = None
    bus.publish(999)
    bus.stop()
    os.write(writing, b"done")
    os.close(writing)
    os.close(reading)
    for number in (0, 1, 2):
        os.close(number)
    time.sleep(seconds)
    os._exit(0)


main()
