"""Real work with popular packages, by the processor time of the whole process."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from importlib import import_module
from time import process_time_ns
from typing import TYPE_CHECKING, Any

from bench.registry import Case, UnavailableError, add

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from bench.fixture import Fixture
    from bench.registry import Loop

LIMIT = 1.05
IDLE = 1.01
INSERTS = 20_000
RENDERS = 300
REQUESTS = 100
FILES = 50
ROWS = 2_000

BASE = "<html><title>{% block title %}{% endblock %}</title><body>{% block body %}{% endblock %}</body></html>"
PAGE = """{% extends "base.html" %}
{% block title %}{{ title|title }}{% endblock %}
{% block body %}<ul>{% for item in items %}
<li class="{{ loop.cycle('odd', 'even') }}">
{{ loop.index }}: {{ item.name|e }} costs {{ '%.2f'|format(item.price) }}</li>
{% endfor %}</ul>{% endblock %}
"""


def package(name: str) -> Any:
    """Import a package before any guard, like a host's imports."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise UnavailableError(f"{name.partition('.')[0]} is not installed: make compat") from None


def _timed(work: Callable[[], object], tidy: Callable[[], object] = lambda: None) -> Loop:
    """Repeat the work, and clean up after each turn outside the measured time."""

    def loop(turns: int) -> int:
        elapsed = 0
        for _ in range(turns):
            start = process_time_ns()
            work()
            elapsed += process_time_ns() - start
            tidy()
        return elapsed

    return loop


def _folder(bed: Fixture, name: str) -> Path:
    """Create a folder for this worker, below the declared one."""
    folder = bed.ground.work / f"{name}-{os.getpid()}"
    folder.mkdir(exist_ok=True)
    return folder


def csv_round_trip(bed: Fixture) -> Loop:
    pandas = package("pandas")
    file = _folder(bed, "csv") / "table.csv"
    columns = {f"column{number}": [number + row / 7 for row in range(ROWS)] for number in range(4)}
    frame = pandas.DataFrame(columns | {"name": [f"row {row}" for row in range(ROWS)]})

    def work() -> None:
        frame.to_csv(file, index=False)
        assert len(pandas.read_csv(file)) == ROWS

    return _timed(work)


def sqlite_inserts(bed: Fixture) -> Loop:
    file = _folder(bed, "sqlite") / "rows.db"

    def work() -> None:
        connection = sqlite3.connect(file)
        connection.execute("CREATE TABLE item (number INTEGER, name TEXT, price REAL)")
        for number in range(INSERTS):
            connection.execute("INSERT INTO item VALUES (?, ?, ?)", (number, "a name", 1.5))
        connection.commit()
        connection.close()

    return _timed(work, lambda: file.unlink(missing_ok=True))


def template_renders(bed: Fixture) -> Loop:
    jinja2 = package("jinja2")
    folder = _folder(bed, "templates")
    (folder / "base.html").write_text(BASE)
    (folder / "page.html").write_text(PAGE)
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(folder), autoescape=True)
    items = [{"name": f"item <{number}>", "price": number * 1.5} for number in range(5)]

    def work() -> None:
        for _ in range(RENDERS):
            environment.get_template("page.html").render(title="the list", items=items)

    return _timed(work)


def small_files(bed: Fixture) -> Loop:
    folder = _folder(bed, "files")
    text = "A line of text.\n" * 20

    def work() -> None:
        for number in range(FILES):
            path = folder / f"note{number}.txt"
            path.write_text(text)
            assert path.read_text() == text
            assert path.stat().st_size == len(text)
            path.unlink()

    return _timed(work)


def scikit_fit(bed: Fixture) -> Loop:
    del bed
    ensemble, linear, datasets = (package(f"sklearn.{name}") for name in ("ensemble", "linear_model", "datasets"))
    points, labels = datasets.make_classification(n_samples=300, n_features=10, random_state=0)

    def work() -> None:
        linear.LogisticRegression().fit(points, labels)
        ensemble.RandomForestClassifier(n_estimators=20, random_state=0).fit(points, labels)

    return _timed(work)


def asgi_requests(bed: Fixture) -> Loop:
    del bed
    fastapi, httpx = package("fastapi"), package("httpx")
    app = fastapi.FastAPI()

    @app.get("/items/{number}")
    async def item(number: int) -> dict[str, Any]:
        return {"number": number, "name": "a name", "tags": ["one", "two"]}

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
            for number in range(REQUESTS):
                assert (await client.get(f"/items/{number}")).json()["number"] == number

    return _timed(lambda: asyncio.run(ask()))


for _name, _prepare in (
    ("pandas: write and read a CSV file", csv_round_trip),
    (f"sqlite3: {INSERTS:,} inserts", sqlite_inserts),
    (f"jinja2: {RENDERS:,} renders", template_renders),
    (f"{FILES} small files: write, read, stat, delete", small_files),
    ("scikit-learn: two fits", scikit_fit),
    (f"FastAPI: {REQUESTS:,} requests in memory", asgi_requests),
):
    add(
        Case(
            _name,
            _prepare,
            limit=LIMIT,
            idle_limit=IDLE,
            reference=False,
            popular=True,
            beside=True,
            together=True,
        )
    )
