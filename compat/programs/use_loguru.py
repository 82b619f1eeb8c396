"""loguru: file sinks with rotation, formats, filters and exceptions."""

from __future__ import annotations


def main(folder: str) -> object:
    import json
    import os

    from loguru import logger

    logger.remove()
    lines = []
    path = os.path.join(folder, "app.log")
    sinks = [
        logger.add(path, format="{level} {message} {extra}", rotation="300 B", retention=3, encoding="utf-8"),
        logger.add(os.path.join(folder, "json.log"), serialize=True),
        logger.add(os.path.join(folder, "queued.log"), format="{message}", enqueue=False, compression="gz"),
        logger.add(lambda message: lines.append(str(message)), format="{level.name}|{message}", level="WARNING"),
    ]
    logger.info("Hello {}", "world")
    logger.bind(user="ann").warning("bound {value:.2f}", value=1.5)
    with logger.contextualize(task=5):
        logger.error("in context")

    @logger.catch(message="caught", default=-1)
    def divide(x: int) -> float:
        return 1 / x

    assert divide(0) == -1
    logger.level("NOTE", no=25)
    logger.log("NOTE", "custom level")
    logger.opt(lazy=True).debug("lazy {}", lambda: 2 + 2)
    for number in range(10):
        logger.info("fill {}", number)
    for sink in sinks:
        logger.remove(sink)
    with open(os.path.join(folder, "json.log"), encoding="utf-8") as file:
        records = [json.loads(line)["record"] for line in file]
    names = os.listdir(folder)
    return {
        "lines": [line.splitlines()[0] for line in lines],
        "records": len(records),
        "exception": [r["exception"]["type"] for r in records if r["exception"]],
        "extra": [r["extra"] for r in records if r["extra"]],
        "rotated": len([n for n in names if n.startswith("app")]) > 1,
        "compressed": len([n for n in names if n.endswith(".gz")]),
    }
