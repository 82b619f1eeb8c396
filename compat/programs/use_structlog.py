"""structlog: processors, bound loggers, standard logging and a file."""

from __future__ import annotations


def main(folder: str) -> object:
    import io
    import json
    import logging
    import os

    import structlog

    path = os.path.join(folder, "app.jsonl")
    with open(path, "w", encoding="utf-8") as file:
        structlog.configure(
            processors=[
                structlog.contextvars.merge_contextvars,
                structlog.processors.add_log_level,
                structlog.processors.StackInfoRenderer(),
                structlog.processors.dict_tracebacks,
                structlog.processors.JSONRenderer(sort_keys=True),
            ],
            wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
            logger_factory=structlog.WriteLoggerFactory(file=file),
            cache_logger_on_first_use=False,
        )
        log = structlog.get_logger()
        log.info("started", version=3)
        log.debug("hidden")
        bound = log.bind(user="ann")
        bound.warning("careful", items=[1, 2])
        with structlog.contextvars.bound_contextvars(request=7):
            bound.error("failed")
        try:
            1 / 0
        except ZeroDivisionError:
            log.exception("broken")
    with open(path, encoding="utf-8") as file:
        events = [json.loads(line) for line in file]
    failure = events[-1].pop("exception")
    assert failure[0]["exc_type"] == "ZeroDivisionError"

    output = io.StringIO()
    console = structlog.wrap_logger(
        structlog.PrintLogger(output), processors=[structlog.dev.ConsoleRenderer(colors=False)]
    )
    console.msg("hello", a=1)
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(structlog.stdlib.ProcessorFormatter(processor=structlog.processors.KeyValueRenderer()))
    standard = logging.getLogger("use_structlog")
    standard.addHandler(handler)
    standard.propagate = False
    standard.warning("from logging")
    standard.removeHandler(handler)
    with structlog.testing.capture_logs() as captured:
        structlog.get_logger().info("captured", n=1)
    structlog.reset_defaults()
    return {"events": events, "console": output.getvalue().split(), "stream": stream.getvalue(), "captured": captured}
