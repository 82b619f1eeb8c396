"""``democrai-sandbox serve``: run the reference host until a signal."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import TYPE_CHECKING

from .exits import Exit
from .logs import set_up_logging
from .terminals import give_up

if TYPE_CHECKING:
    import argparse

    from .output import Output


def run(options: argparse.Namespace, _: Output) -> int:
    """Serve until a signal. Slow imports are here, where an interrupt does not print a traceback."""
    from democrai_sandbox.errors import HostRefused  # noqa: PLC0415 - see above

    set_up_logging(options.log_format)
    try:
        from democrai_sandbox.console import server  # noqa: PLC0415 - the packages of the extra may be missing
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("democrai_sandbox"):
            raise
        raise HostRefused(
            f"the package {error.name!r} is missing", fix="pip install 'democrai-sandbox[console]'"
        ) from None
    from democrai_sandbox.host import Sandbox  # noqa: PLC0415 - importing it arms the guard
    from democrai_sandbox.host.config import load  # noqa: PLC0415 - see above

    settings = load(options.config, environ=_environment()).settings
    server.await_services(settings)
    sandbox = Sandbox(settings)
    try:
        # After the kernel layer: the packet filter identifies a socket by the cgroup in which it was created.
        listener = server.bind(sandbox.settings.server)
    except BaseException:
        sandbox.abandon()
        raise

    lost = asyncio.run(server.serve(sandbox, listener, _say))
    return Exit.UNREACHABLE if lost else Exit.OK


def _environment() -> dict[str, str]:
    """Remove the configuration from the environment and return it: it can contain a password, and modules see it."""
    from democrai_sandbox.host.config.overlay import PREFIX  # noqa: PLC0415 - see run

    environ = dict(os.environ)
    for name in environ:
        if name.startswith(PREFIX):
            del os.environ[name]
    return environ


def _say(line: str) -> None:
    """Write a message to standard output, because a password must not be in a log.

    Raise ``OSError`` if standard output is closed.
    """
    if sys.stdout is None:
        raise OSError("it is closed")
    try:
        print(line, flush=True)  # noqa: T201 - a command's answer
    except OSError:
        give_up(sys.stdout.fileno())
        raise
