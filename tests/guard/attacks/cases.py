"""Small cases of host and subject code, each run in a fork of one guarded process: what it raised, or what it gave.

    python -P cases.py <base directory> < cases.json

The tests give a mapping of names to source text; `setup` is run first, as the host, before anything else. A case that
ends its process is reported as a crash and harms no other.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

TIME_LIMIT = 250


def run_cases(cases: dict[str, str], base: Path, setup: str = "") -> dict[str, dict[str, object]]:
    """Run all cases; the outcome of each is {"raised": [type names], "text": …} or {"value": …} or {"crashed": …}."""
    kept = {name: os.environ[name] for name in ("PATH", "PYTHONPATH", "LANG", "LD_LIBRARY_PATH") if name in os.environ}
    child = subprocess.run(
        [sys.executable, "-P", "-W", "ignore", __file__, str(base)],
        env=kept | {"TMPDIR": f"{base}/tmp", "PYTHONDONTWRITEBYTECODE": "1"},
        input=json.dumps({"setup": setup, "cases": cases}),
        capture_output=True,
        text=True,
        timeout=TIME_LIMIT,
        check=False,
    )
    if child.returncode != 0:
        raise AssertionError(f"the process of the cases ended with {child.returncode}: {child.stderr[-2000:]}")
    outcomes: dict[str, dict[str, object]] = json.loads(child.stdout)
    return outcomes


def _outcome(source: str, space: dict[str, object]) -> dict[str, object]:
    """Run one case; its result is what it binds to `result`."""
    try:
        exec(compile(source, "<case>", "exec"), space)
    except BaseException as error:
        return {"raised": [kind.__name__ for kind in type(error).__mro__], "text": str(error)[:300]}
    return {"value": repr(space.get("result"))[:300]}


def _in_fork(source: str, space: dict[str, object]) -> dict[str, object]:
    """Run one case in a fork, and read its outcome from a pipe."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(write, json.dumps(_outcome(source, space)).encode("ascii", "backslashreplace"))
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as answers:
        data = answers.read()
    status = os.waitpid(pid, 0)[1]
    return json.loads(data) if status == 0 and data else {"crashed": os.waitstatus_to_exitcode(status)}


def _main() -> None:
    order = json.load(sys.stdin)
    base = sys.argv[1]
    os.makedirs(base, exist_ok=True)
    for folder in ("inside/vault", "outside", "tmp", "neutral"):
        os.makedirs(f"{base}/{folder}", exist_ok=True)
    Path(f"{base}/outside/secret.txt").write_text("the-secret-4711")
    Path(f"{base}/inside/vault/secret.txt").write_text("the-secret-4711")
    Path(f"{base}/inside/own.txt").write_text("own")
    os.chdir(f"{base}/neutral")
    import democrai_sandbox

    space = {name: getattr(democrai_sandbox, name) for name in democrai_sandbox.__all__}
    space |= {"os": os, "base": base, "inside": f"{base}/inside", "outside": f"{base}/outside/secret.txt"}
    exec(compile(order["setup"], "<setup>", "exec"), space)
    print(json.dumps({name: _in_fork(source, dict(space)) for name, source in order["cases"].items()}))


if __name__ == "__main__":
    _main()
