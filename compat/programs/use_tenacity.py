"""tenacity: retries with stops, waits, callbacks and asyncio."""

from __future__ import annotations


def main(folder: str) -> object:
    import asyncio
    import os

    import tenacity
    from tenacity import RetryError, Retrying, retry, retry_if_exception_type, retry_if_result
    from tenacity import stop_after_attempt, wait_exponential, wait_fixed

    path = os.path.join(folder, "later.txt")
    calls = []

    @retry(stop=stop_after_attempt(5), wait=wait_fixed(0.001), retry=retry_if_exception_type(FileNotFoundError))
    def read() -> str:
        calls.append(1)
        if len(calls) == 3:
            with open(path, "w", encoding="utf-8") as file:
                file.write("here")
        with open(path, encoding="utf-8") as file:
            return file.read()

    assert read() == "here"

    slept = []

    @retry(stop=stop_after_attempt(4), wait=wait_exponential(multiplier=1, max=3), sleep=slept.append)
    def never() -> None:
        raise ValueError("no")

    try:
        never()
        error = ""
    except RetryError as problem:
        error = type(problem.last_attempt.exception()).__name__

    values = iter([None, None, 7])
    found = retry(retry=retry_if_result(lambda v: v is None), wait=wait_fixed(0))(lambda: next(values))()
    attempts = 0
    for attempt in Retrying(stop=stop_after_attempt(3), reraise=True):
        with attempt:
            attempts += 1
            if attempts < 3:
                raise OSError("again")

    async_calls = []

    @retry(stop=stop_after_attempt(3), wait=wait_fixed(0.001))
    async def later() -> int:
        async_calls.append(1)
        if len(async_calls) < 2:
            raise OSError("again")
        return len(async_calls)

    return {
        "calls": len(calls),
        "slept": slept,
        "error": error,
        "found": found,
        "attempts": attempts,
        "async": asyncio.run(later()),
        "statistics": read.statistics["attempt_number"],
        "fallback": retry(stop=stop_after_attempt(1), retry_error_callback=lambda s: "fallback")(lambda: 1 / 0)(),
        "tries": tenacity.stop_after_attempt(2).max_attempt_number,
    }
