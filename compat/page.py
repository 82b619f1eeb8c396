"""Write ``docs/compatibility.md`` from ``results/*.json`` and ``expected.toml``: ``python -m compat.page``."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compat.expected import GOOD, Expected, results_of

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGE = HERE.parent / "docs" / "compatibility.md"
MODES = ("plain", "idle", "guarded", "worker")
HEADINGS = {"plain": "without the guard", "idle": "idle guard", "guarded": "guarded", "worker": "worker"}

BEGINNING = """\
# Compatibility

Popular packages and the standard library, each used by a program that does typical work in one declared folder.
`make compat` runs every program in four modes and writes this page.

| mode | how the program runs |
|---|---|
| without the guard | in an interpreter that does not import democrai-sandbox |
| idle guard | the guard is loaded, and the program runs outside of it, as host code |
| guarded | inside `process_guard_context` with the folder in `allowed_paths`, in the process of the application |
| worker | as a module in a separate worker process: the guard, Landlock, seccomp and the egress allowlist |

In a worker, every installed package can use `ctypes` and `cffi`, because the kernel confines the process.
In the process of the application only the packages in `sandbox.guard.native_packages` can; these runs list {trusted}.
"""


def write_results(name: str, content: dict[str, Any]) -> None:
    """Write a file of results."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def stored() -> dict[str, dict[str, Any]]:
    """Return the results by the names of their files."""
    return {file.stem: json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))}


def write() -> None:
    """Write the page."""
    PAGE.write_text(text())


def text() -> str:
    """Return the page."""
    from compat.running import TRUSTED  # it is a script as well

    found = stored()
    parts = [BEGINNING.format(trusted=", ".join(f"`{name}`" for name in TRUSTED))]
    if "programs" in found:
        parts += programs(found.pop("programs"))
    for content in found.values():
        parts += suites(content)
    return "\n".join(parts)


# ---- programs --------------------------------------------------------------------------------------------------------


def programs(content: dict[str, Any]) -> Iterator[str]:
    """Yield the section about programs."""
    rows, expected = content["programs"], Expected()
    yield f"## Packages\n\n{summary(rows)}\n{machine(content)}\n"
    yield "| package | version | " + " | ".join(HEADINGS[mode] for mode in MODES) + " |"
    yield "|---|---|" + "---|" * len(MODES)
    for row in rows:
        cells = " | ".join(cell(row, mode, result, expected) for mode, result in ordered(row))
        yield f"| {title(row['name'])} | {row['version']} | {cells} |"
    yield ""
    yield from reasons(rows, expected)


def summary(rows: list[dict[str, str]]) -> str:
    """Say how many programs work in each mode."""
    good = Counter(mode for row in rows for mode, result in results_of(row) if result in GOOD)
    told = ", ".join(f"{HEADINGS[mode]} {good[mode]}" for mode in MODES)
    return f"{len(rows)} programs; those that work as they do without the guard: {told}."


def machine(content: dict[str, Any]) -> str:
    """Say what the programs ran on."""
    egress = "the egress allowlist" if content["layers"]["egress"] else "no egress allowlist"
    abi = content["layers"]["landlock_abi"]
    return f"CPython {content['python']}; workers with Landlock (ABI {abi}), seccomp and {egress}."


def ordered(row: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the modes in the order of the columns."""
    yield from ((mode, row[mode]) for mode in MODES)


def title(name: str) -> str:
    """Return the name of a package."""
    return f"standard library: {name.removeprefix('stdlib_')}" if name.startswith("stdlib_") else name.replace("_", "-")


def cell(row: dict[str, str], mode: str, result: str, expected: Expected) -> str:
    """Return a cell of the table."""
    if result in GOOD:
        return "works"
    return f"[differs](#{anchor(row['name'])})" if expected.find(row["name"], mode, result) else "fails"


def anchor(name: str) -> str:
    """Return the anchor of the paragraph about a package."""
    return title(name).lower().replace(":", "").replace(" ", "-")


def reasons(rows: list[dict[str, str]], expected: Expected) -> Iterator[str]:
    """Yield a paragraph for each package that differs somewhere."""
    different = [row for row in rows if any(result not in GOOD for _, result in results_of(row))]
    if different:
        yield "## Differences\n"
    for row in different:
        yield f"### {title(row['name'])}\n"
        for mode, result in ordered(row):
            if result not in GOOD:
                yield reason(mode, result, expected.find(row["name"], mode, result))
        yield ""


def reason(mode: str, result: str, entry: dict[str, Any] | None) -> str:
    """Return a line about a difference."""
    if entry is None:
        return f"* {HEADINGS[mode]}: not explained: `{result}`"
    declare = f" {entry['declare']}" if entry["declare"] else ""
    return f"* {HEADINGS[mode]}: {entry['reason']}{declare}"


# ---- suites ----------------------------------------------------------------------------------------------------------


def suites(content: dict[str, Any]) -> Iterator[str]:
    """Yield a section about test suites."""
    modes = ("plain", *content["modes"])
    yield f"## {content['title']}\n\n{content['about']} CPython {content['python']}."
    yield "Each cell has the number of tests that failed, and that ran.\n"
    yield "| suite | version | " + " | ".join(HEADINGS[mode] for mode in modes) + " |"
    yield "|---|---|" + "---|" * len(modes)
    for suite in content["suites"]:
        check(suite, modes)
        cells = " | ".join(counts(suite["counts"].get(mode)) for mode in modes)
        yield f"| {suite['name']} | {suite['version']} | {cells} |"
    yield ""
    yield from differences(content["suites"])


def check(suite: dict[str, Any], modes: tuple[str, ...]) -> None:
    """Refuse results in which more tests fail than are explained."""
    explained = Counter(one["mode"] for one in suite["differences"] for _ in one["tests"])
    for mode in modes:
        more = suite["counts"].get(mode, suite["counts"]["plain"])["failed"] - suite["counts"]["plain"]["failed"]
        if more > explained[mode]:
            raise ValueError(f"{suite['name']}, {mode}: {more} more tests fail, and {explained[mode]} are explained")


def counts(count: dict[str, int] | None) -> str:
    """Return a cell of the table."""
    return "not run" if count is None else f"{count['failed']} of {count['ran']}"


def differences(found: list[dict[str, Any]]) -> Iterator[str]:
    """Yield the reasons for which tests end otherwise than without the guard, with their numbers."""
    numbers: Counter[tuple[str, str]] = Counter()
    where: dict[tuple[str, str], dict[str, None]] = {}
    for suite in found:
        for one in suite["differences"]:
            key = (one["reason"], one["declare"])
            numbers[key] += len(one["tests"])
            where.setdefault(key, {})[suite["name"]] = None
    if numbers:
        yield "| tests | reason | to declare | suites |\n|---|---|---|---|"
    for key, number in numbers.most_common():
        yield f"| {number} | {key[0]} | {key[1] or 'nothing'} | {', '.join(where[key])} |"
    yield ""


if __name__ == "__main__":
    write()
