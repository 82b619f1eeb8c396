"""celery: tasks that run at once, chains, groups, retries and the in-memory transport."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    from celery import Celery, chain, chord, group
    from celery.schedules import crontab

    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.update(task_always_eager=True, task_eager_propagates=False, task_store_eager_result=False)
    attempts = []

    @app.task
    def add(x: int, y: int) -> int:
        return x + y

    @app.task
    def total(values: list) -> int:
        return sum(values)

    @app.task(bind=True, max_retries=3, default_retry_delay=0)
    def flaky(self: object) -> str:
        attempts.append(self.request.retries)
        if len(attempts) < 3:
            raise self.retry(exc=ValueError("again"))
        return "done"

    @app.task
    def save(text: str) -> int:
        with open(os.path.join(folder, "task.txt"), "w", encoding="utf-8") as file:
            return file.write(text)

    @app.task
    def fail() -> None:
        raise KeyError("missing")

    simple = add.delay(2, 3)
    assert simple.successful() and simple.get() == 5
    failed = fail.apply_async()
    app.conf.beat_schedule = {"nightly": {"task": add.name, "schedule": crontab(hour=3, minute=0), "args": (1, 1)}}
    return {
        "chain": chain(add.s(1, 2), add.s(10), add.s(100))().get(),
        "group": group(add.s(n, n) for n in range(4))().get(),
        "chord": chord([add.s(n, 1) for n in range(3)])(total.s()).get(),
        "retry": [flaky.delay().state, attempts],
        "saved": save.delay("hello").get(),
        "failed": [failed.state, type(failed.result).__name__],
        "signature": add.s(1, 2).set(countdown=5).options,
        "cron": str(app.conf.beat_schedule["nightly"]["schedule"]),
    }
