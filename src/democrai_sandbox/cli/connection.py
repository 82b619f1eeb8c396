"""Configuration, node and token of a command, and lists of the API."""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from democrai_sandbox.cli.arguments.options import TOKEN_FILE, TOKEN_VARIABLE, URL_VARIABLE
from democrai_sandbox.errors import CommandMisused, CommandRefused, NodeRefused, NodeUnreachable

from .node_client import NodeClient

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from democrai_sandbox.host.config import Loaded

    from .output import CommandOutput

_LONGEST = 4096
_TOKEN = re.compile(r"[!-~]{1,1000}")
"""Characters allowed in a header."""


def configuration(options: argparse.Namespace) -> Loaded:
    """Load the configuration of a command."""
    from democrai_sandbox.host.config import load  # noqa: PLC0415 - takes its time, and not every command needs it

    return load(options.config)


def node(options: argparse.Namespace) -> NodeClient:
    """Return the node. Needs no configuration if address and token are given."""
    address, token = _address(options), _token(options)
    if not token:
        with suppress(NodeRefused):
            NodeClient(*address, token="").get("/status")  # a missing node is the better error
        raise CommandMisused(
            "the token for the node is missing",
            fix=f"run democrai-sandbox admin token create --save, or set {TOKEN_VARIABLE}",
        )
    asked = NodeClient(*address, token=token)
    options.asked = asked  # for the error output
    return asked


def _address(options: argparse.Namespace) -> tuple[str, str]:
    """Return the address of the node and its origin."""
    if options.url:
        return str(options.url), "--url"
    if given := os.environ.get(URL_VARIABLE):
        return given, URL_VARIABLE
    loaded = configuration(options)
    server = loaded.settings.server
    running = _running(loaded.settings.state_dir)
    if running:
        return running, f"the address file in {loaded.settings.state_dir}"
    if server.public_url:
        return server.public_url, "server.public_url"
    if not server.port:
        raise NodeUnreachable(
            f"no node runs on {loaded.settings.state_dir}, and server.port is 0",
            fix="start one with democrai-sandbox serve, or name one with --url",
        )
    host = f"[{server.host}]" if ":" in server.host else server.host
    return f"http://{host}:{server.port}", "server.host and server.port"


def _running(state_dir: str) -> str:
    """Return the address of the node that uses a state folder, or an empty text."""
    from democrai_sandbox.host.node_address import ADDRESS_FILE, read_node_address  # noqa: PLC0415 - as above

    try:
        found = read_node_address(state_dir)
    except OSError as error:
        raise _unreadable(f"{state_dir}/{ADDRESS_FILE}", error) from None
    if found is None:
        return ""
    if not found.is_held:
        raise NodeUnreachable(
            f"the node that wrote {state_dir}/{ADDRESS_FILE} ended without removing it",
            fix="start it again with democrai-sandbox serve, or name another one with --url",
        )
    return found.url


def _token(options: argparse.Namespace) -> str:
    """Return the token, or an empty text if none is found."""
    if options.token_file:
        token, source = _kept(options.token_file, waits=True), options.token_file
        if not token:
            raise CommandRefused(f"{source} contains no token", fix="write a token into its first line")
    elif token := os.environ.get(TOKEN_VARIABLE, ""):
        source = TOKEN_VARIABLE
    else:
        source = f"{configuration(options).settings.state_dir}/{TOKEN_FILE}"
        token = _kept(source)
    if token and not _TOKEN.fullmatch(token):
        raise CommandRefused(f"{source} does not contain a valid token", fix="copy the whole token, and nothing else")
    return token


def _kept(file: str, *, waits: bool = False) -> str:
    """Return the token of a file that other users cannot read, or an empty text.

    ``waits`` allows a pipe, such as the process substitution of a shell; not for the default file.
    """
    try:
        with open(file, "rb", opener=None if waits else open_without_waiting) as text:
            mode = os.fstat(text.fileno()).st_mode
            if not waits and not stat.S_ISREG(mode):
                raise CommandRefused(f"{file} is not a regular file", fix=f"remove it, or set {TOKEN_VARIABLE}")
            if stat.S_IMODE(mode) & (stat.S_IRWXG | stat.S_IRWXO):
                raise CommandRefused(f"other users can read {file}", fix=f"chmod 600 {file}, and create a new token")
            return text.readline(_LONGEST).decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise _unreadable(file, error) from None


def open_without_waiting(path: str, flags: int) -> int:
    """Open a file without waiting for the writer of a pipe; for ``opener=``."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _unreadable(file: str, error: OSError) -> CommandRefused:
    return CommandRefused(
        f"{file} cannot be read: {error.strerror}",
        fix=f"run this as its owner, or use --url and {TOKEN_VARIABLE}",
    )


def given_filters(options: argparse.Namespace) -> dict[str, Any]:
    """Return the filters as parameters of the API."""
    return {name: getattr(options, name) for name in options.filters}


def list_items(
    node: NodeClient, path: str, options: argparse.Namespace, **query: Any
) -> tuple[list[dict[str, Any]], bool]:
    """Return the items of a list up to the limit, and whether more exist."""
    found = list(islice(node.items(path, most=options.limit + 1, **given_filters(options), **query), options.limit + 1))
    return found[: options.limit], len(found) > options.limit


def show_items(
    output: CommandOutput,
    schema: str,
    found: tuple[list[dict[str, Any]], bool],
    show: Callable[[list[dict[str, Any]]], None],
    empty: str,
) -> None:
    """Show the items, and a note if more exist."""
    items, has_more = found
    if output.is_json:
        output.data(schema, {"items": items, "has_more": has_more})
        return
    if items:
        show(items)
    else:
        output.say(empty)
    if has_more:
        output.say(f"more than {len(items)} exist: use --limit or filters")
