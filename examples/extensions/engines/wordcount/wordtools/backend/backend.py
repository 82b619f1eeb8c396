"""A build backend in one file, so that the example needs nothing from an index.

pip runs it in the guard of the engine's install phase, where it also tries what it must not.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

NAME, VERSION = "wordtools", "1.0"


def build_wheel(folder: str, config_settings: object = None, metadata_directory: object = None) -> str:
    """Put the module into a wheel; return the name of the file."""
    del config_settings, metadata_directory
    info = f"{NAME}-{VERSION}.dist-info"
    files = {
        f"{NAME}.py": Path(f"{NAME}.py").read_text(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {VERSION}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: example\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    wheel = f"{NAME}-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(Path(folder, wheel), "w") as made:
        for path, text in files.items():
            made.writestr(path, text)
        made.writestr(f"{info}/RECORD", "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"]))
    return wheel


def misbehave() -> None:
    """Read a file of the host's. It has to fail, or the build does."""
    try:
        Path("/etc/passwd").read_text()
    except PermissionError:
        return
    raise SystemExit("a file of the host could be read during the installation")


misbehave()
