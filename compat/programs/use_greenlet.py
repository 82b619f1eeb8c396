"""greenlet: switching, passing values, exceptions and a generator made of greenlets."""

from __future__ import annotations


def main(folder: str) -> object:
    import contextvars
    import os

    from greenlet import GreenletExit, getcurrent, greenlet

    steps = []

    def one(value: int) -> str:
        steps.append(["one", value])
        reply = second.switch(value + 1)
        steps.append(["one again", reply])
        return "finished"

    def two(value: int) -> None:
        steps.append(["two", value])
        with open(os.path.join(folder, "a.txt"), "w", encoding="utf-8") as file:
            file.write(str(value))
        first.switch(value + 1)

    first, second = greenlet(one), greenlet(two)
    final = first.switch(1)
    assert final == "finished" and first.dead and not second.dead

    def fails() -> None:
        try:
            getcurrent().parent.switch("ready")
        except ValueError as error:
            raise KeyError("changed") from error

    failing = greenlet(fails)
    ready = failing.switch()
    try:
        failing.throw(ValueError("inside"))
        error = ""
    except KeyError as problem:
        error = type(problem.__cause__).__name__

    def produce(items: list) -> list:
        consumer, out = getcurrent(), []
        worker = greenlet(lambda: [consumer.switch(item) for item in items] and None)
        item = worker.switch()
        while not worker.dead:
            out.append(item)
            item = worker.switch()
        return out

    variable = contextvars.ContextVar("variable", default="default")
    task = greenlet(lambda: variable.get())
    task.gr_context = contextvars.copy_context()
    task.gr_context.run(variable.set, "inside")
    stopped = greenlet(lambda: getcurrent().parent.switch("wait"))
    stopped.switch()
    left = stopped.throw(GreenletExit)

    def deep(n: int) -> int:
        return n if n == 0 else greenlet(deep).switch(n - 1) + n

    second.throw(GreenletExit)
    return {
        "steps": steps,
        "ready": ready,
        "error": error,
        "produced": produce([1, 2, 3]),
        "context": [task.switch(), variable.get()],
        "left": type(left).__name__,
        "deep": deep(20),
    }
