"""Suites of packages: the environment they run in, and their source archives, pinned by hash."""

from __future__ import annotations

import hashlib
import html
import re
import subprocess
import sys
import tarfile
import tomllib
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from compat.running_suites import LOOPBACK, Suite

HERE = Path(__file__).parent
ROOT = HERE.parent
VENV = ROOT / ".venvs" / "suites"
ARCHIVES = ROOT / "build" / "compat" / "archives"
FILE = HERE / "packages.toml"


def environment(python: str) -> str:
    """Return the interpreter of the environment with the hashed requirements; make it if these have changed."""
    requirements = HERE / "suites.txt"
    stamp, wanted = VENV / ".requirements", hashlib.sha256(requirements.read_bytes()).hexdigest()
    made = VENV / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != wanted:
        base = subprocess.run(
            [python, "-c", "import sys; print(sys._base_executable)"], capture_output=True, text=True, check=True
        ).stdout.strip()
        subprocess.run([base, "-m", "venv", "--clear", VENV], check=True)
        subprocess.run(
            [made, "-m", "pip", "install", "--quiet", "--require-hashes", "-r", requirements],
            check=True,
            stderr=subprocess.DEVNULL,
        )
        stamp.write_text(wanted)
    return str(made)


def index(python: str) -> str:
    """Return the package index that pip uses."""
    code = (
        "from pip._internal.configuration import Configuration as C\n"
        "from pip._internal.models.index import PyPI\n"
        "found = C(isolated=False)\n"
        "found.load()\n"
        "print(dict(found.items()).get('global.index-url', PyPI.simple_url))\n"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip().rstrip("/")


def download(python: str, name: str, digest: str, target: Path) -> None:
    """Load a source archive from the index, found there by its hash."""
    page = f"{index(python)}/{name}/"
    with urllib.request.urlopen(page, timeout=60) as answer:
        links = re.findall(r'href="([^"]+)"', answer.read().decode())
    found = next((link for link in map(html.unescape, links) if link.endswith(f"#sha256={digest}")), None)
    if found is None:
        raise ValueError(f"{name}: the index has no archive with the pinned hash {digest}")
    with urllib.request.urlopen(urljoin(page, found.partition("#")[0]), timeout=120) as answer:
        content = answer.read()
    if hashlib.sha256(content).hexdigest() != digest:
        raise ValueError(f"{name}: the archive does not have the pinned hash {digest}")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)


def source_of(python: str, name: str, entry: dict[str, Any]) -> Path:
    """Return the unpacked source archive of a package, without the package itself where that lies at its top."""
    folder = ARCHIVES / f"{name}-{entry['version']}-{entry['sha256'][:12]}"
    archive = folder.with_suffix(".archive")
    if not folder.exists():
        if not archive.exists():
            download(python, name, entry["sha256"], archive)
        with tarfile.open(archive) as opened:
            opened.extractall(folder, filter="data")
    (inside,) = folder.iterdir()
    return inside


def package_suites(python: str, names: list[str]) -> list[Suite]:
    """Return the suites of the packages in `packages.toml`."""
    entries = {name: entry for name, entry in tomllib.loads(FILE.read_text()).items() if not names or name in names}
    if not entries:
        return []
    made = environment(python)
    return [
        Suite(
            name,
            entry["version"],
            made,
            "suite_package.py",
            {"arguments": entry["arguments"], "plugins": entry.get("plugins", [])},
            LOOPBACK,
            source_of(made, name, entry),
            ("guarded",),
        )
        for name, entry in entries.items()
    ]


if __name__ == "__main__":
    sys.exit("run python -m compat.suites --only packages")
