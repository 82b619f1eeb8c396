"""Small packages to install: wheels made by hand, and sources with their own backend, which need no index."""

from __future__ import annotations

import zipfile
from pathlib import Path

_PYPROJECT = """
[build-system]
requires = []
build-backend = "own_backend"
backend-path = ["backend"]

[project]
name = "{name}"
version = "{version}"
"""

_BACKEND = """
import os, zipfile

{before}

def build_wheel(folder, config_settings=None, metadata_directory=None):
    name = "{name}-{version}-py3-none-any.whl"
    info = "{name}-{version}.dist-info"
    files = {{
        "{name}.py": open("{name}.py").read(),
        info + "/METADATA": "Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n",
        info + "/WHEEL": "Wheel-Version: 1.0\\nGenerator: hand\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }}
    with zipfile.ZipFile(os.path.join(folder, name), "w") as made:
        for path, text in files.items():
            made.writestr(path, text)
        made.writestr(info + "/RECORD", "".join(path + ",,\\n" for path in [*files, info + "/RECORD"]))
    return name
"""


def wheel(folder, name, version, text="", requires=(), extra=None):
    """Write a wheel with one module into a folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {item}\n" for item in requires)
    files = {
        f"{name}.py": text or f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        **(extra or {}),
    }
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as made:
        for member, content in files.items():
            made.writestr(member, content)
        made.writestr(f"{info}/RECORD", "".join(f"{member},,\n" for member in [*files, f"{info}/RECORD"]))
    return path


def source(folder, name, version="1.0", text="", before=""):
    """Make a source package whose backend runs the code ``before`` first."""
    folder = Path(folder)
    (folder / "backend").mkdir(parents=True, exist_ok=True)
    (folder / "pyproject.toml").write_text(_PYPROJECT.format(name=name, version=version))
    (folder / f"{name}.py").write_text(text or f"VERSION = {version!r}\n")
    (folder / "backend" / "own_backend.py").write_text(_BACKEND.format(name=name, version=version, before=before))
    return folder
