"""The pip that installations use, and its effective configuration from its files and variables."""

from __future__ import annotations

import compileall
import importlib.util
import json
import re
import shutil
import sysconfig
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from democrai_sandbox.runtime.inherited import INTERPRETER, host_environment

from .interface import InstallFailed
from .process import output_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from democrai_sandbox.runtime.worker.interface import Starter

_PATIENCE = 60.0

# Ask pip for the options that "pip install" would use here, so that its own rules about files, sections and variables
# apply, including its default index.
_QUESTION = """
import json, sys
sys.path.insert(0, sys.argv[1])
import pip
from pip._internal.commands import create_command
from pip._internal.models.index import PyPI
options, _ = create_command("install").parse_args([])
wanted = ("index_url", "extra_index_urls", "no_index", "find_links", "proxy", "trusted_hosts", "cert", "client_cert",
          "timeout", "retries", "constraints", "prefer_binary", "pre")
told = {name: getattr(options, name) for name in wanted}
told["no_binary"] = sorted(options.format_control.no_binary)
told["only_binary"] = sorted(options.format_control.only_binary)
told.update(version=pip.__version__, default_index=PyPI.simple_url, default_files="https://" + PyPI.file_storage_domain)
print(json.dumps(told))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipConfiguration:
    """Settings that choose package sources and versions. The destination is never taken from here."""

    version: str
    index_url: str
    default_index: str
    """Index that pip uses when none is configured."""
    default_files: str
    """File host of that index."""
    extra_index_urls: tuple[str, ...] = ()
    no_index: bool = False
    find_links: tuple[str, ...] = ()
    proxy: str = ""
    trusted_hosts: tuple[str, ...] = ()
    cert: str | None = None
    client_cert: str | None = None
    timeout: float = 15.0
    retries: int = 5
    constraints: tuple[str, ...] = ()
    prefer_binary: bool = False
    pre: bool = False
    no_binary: tuple[str, ...] = ()
    only_binary: tuple[str, ...] = ()


def find_pip(kept_in: Path) -> Path:
    """Return the folder of a standalone ``pip`` package: a copy of the host's, or of the interpreter's bundled one.

    Copied once per version. pip restarts itself from its own folder and reads files beside it, which the guard would
    refuse among the host's packages.
    """
    spec = importlib.util.find_spec("pip")
    if spec is not None and spec.origin is not None:
        source = Path(spec.origin).parent
        return _kept(kept_in / f"pip-{_version_of(source)}", lambda to: shutil.copytree(source, to / "pip"))
    archives = _bundled()
    if not archives:
        why = f"run {INTERPRETER} -m ensurepip, or install pip beside this distribution"
        raise InstallFailed(f"pip is missing: {why}")
    return _kept(kept_in / archives[0].stem, lambda to: _unpack(archives[0], to))


def _kept(folder: Path, make: Callable[[Path], object]) -> Path:
    """Return the package in a folder, created atomically, because other processes may create it at the same time."""
    if not (folder / "pip" / "__init__.py").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".making-") as unfinished:
            made = Path(unfinished, folder.name)
            made.mkdir()
            make(made)
            try:
                made.rename(folder)
            except OSError:
                if not (folder / "pip" / "__init__.py").is_file():  # no other process was faster
                    raise
    return folder / "pip"


def _unpack(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(folder)
    # Later installations cannot write there, and each would compile it again.
    compileall.compile_dir(folder, quiet=2)


def _version_of(package: Path) -> str:
    found = re.search(r'__version__ = "([\w.]+)"', (package / "__init__.py").read_text("utf-8"))
    return found[1] if found else "unknown"


async def read_configuration(starter: Starter, pip: Path) -> PipConfiguration:
    """Ask pip for its configuration. An unexpected answer is an error, never replaced by a guess."""
    command = [INTERPRETER, "-I", "-c", _QUESTION, str(pip.parent)]
    try:
        told = json.loads(await output_of(starter, command, host_environment(), _PATIENCE))
        return PipConfiguration(**{name: _plain(value) for name, value in told.items()})
    except InstallFailed as error:
        raise InstallFailed(f"the configuration of pip could not be read: {error}", lines=error.lines) from error
    except (OSError, ValueError, TypeError) as error:
        raise InstallFailed(f"the configuration of pip in {pip} could not be read: {error}") from error


def _bundled() -> list[Path]:
    """Return the pip archives that come with the interpreter, newest first."""
    places = [Path(sysconfig.get_path("stdlib"), "ensurepip", "_bundled")]
    if elsewhere := sysconfig.get_config_var("WHEEL_PKG_DIR"):
        places.insert(0, Path(elsewhere))
    return sorted((file for place in places for file in place.glob("pip-*.whl")), reverse=True)


def _plain(value: Any) -> Any:
    """Return lists as immutable tuples."""
    return tuple(value) if isinstance(value, list) else value
