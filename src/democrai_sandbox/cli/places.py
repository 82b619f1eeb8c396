"""Which configuration, which node and which token a command is about."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from democrai_sandbox.errors import CommandMisused, CommandRefused

from .node import Node

if TYPE_CHECKING:
    import argparse

    from democrai_sandbox.host.config import Loaded

URL_VARIABLE = "DEMOCRAI_URL"
TOKEN_VARIABLE = "DEMOCRAI_TOKEN"  # noqa: S105 - the name of it
TOKEN_FILE = "cli.token"  # noqa: S105 - the name of it
"""Below the state folder; ``admin token create --save`` writes it."""
ADDRESS_FILE = "node.url"
"""Below the state folder, while a node runs on it."""


def add_config(parser: argparse.ArgumentParser) -> None:
    """Add ``--config``."""
    parser.add_argument("--config", metavar="FILE", help="a YAML file; DEMOCRAI_CONFIG_FILE names one too")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="data for programs instead of text")


def add_node(parser: argparse.ArgumentParser) -> None:
    """Add what tells which node is asked, and by whom."""
    add_config(parser)
    parser.add_argument(
        "--url", metavar="URL", help=f"the node; {URL_VARIABLE} names it too, else the configuration does"
    )
    parser.add_argument(
        "--token-file",
        metavar="FILE",
        help=f"a file with a token; else {TOKEN_VARIABLE} holds one, or {TOKEN_FILE} in the state folder",
    )


def configuration(options: argparse.Namespace) -> Loaded:
    """Load the configuration that a command is about."""
    from democrai_sandbox.host.config import load  # noqa: PLC0415 - takes its time, and not every command needs it

    return load(options.config)


def node(options: argparse.Namespace) -> Node:
    """Return the node that is asked. Needs no configuration if address and token are given otherwise."""
    return Node(_address(options), _token(options))


def _address(options: argparse.Namespace) -> str:
    given = options.url or os.environ.get(URL_VARIABLE)
    if given:
        return str(given)
    settings = configuration(options).settings
    running = _first_line(f"{settings.state_dir}/{ADDRESS_FILE}")
    if running:
        return running
    if settings.server.public_url:
        return settings.server.public_url
    host, port = settings.server.host, settings.server.port
    if not port:
        raise CommandRefused("no node runs here, and its port would not be known before", fix="start one, or add --url")
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _token(options: argparse.Namespace) -> str:
    if options.token_file:
        token = _kept(options.token_file)
        if not token:
            raise CommandRefused(f"there is no token in {options.token_file}", fix="write one into its first line")
        return token
    given = os.environ.get(TOKEN_VARIABLE) or _kept(f"{configuration(options).settings.state_dir}/{TOKEN_FILE}")
    if not given:
        raise CommandMisused(
            "there is no token to ask the node with",
            fix=f"run democrai-sandbox admin token create --save, or set {TOKEN_VARIABLE}",
        )
    return given


def _kept(file: str) -> str:
    """Return the token in a file that nobody else reads; empty if there is none."""
    try:
        mode = os.stat(file).st_mode  # noqa: PTH116 - a text
    except FileNotFoundError:
        return ""
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise CommandRefused(f"others may read {file}", fix=f"chmod 600 {file}, and make another token")
    return _first_line(file)


def _first_line(file: str) -> str:
    try:
        with open(file, encoding="utf-8") as text:  # noqa: PTH123 - a text
            return text.readline().strip()
    except FileNotFoundError:
        return ""
