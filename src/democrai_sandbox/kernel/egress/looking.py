"""List the helpers of a configuration's applications, from outside these applications.

A helper answers its own application only. A refusal shows that it runs; its rules are in the policy file, and in the
packet filter, which only root can read.
"""

from __future__ import annotations

import glob
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.errors import HelperFailed
from democrai_sandbox.kernel.helper.answers import Refused
from democrai_sandbox.kernel.helper.commands import Commands
from democrai_sandbox.kernel.helper.policy import parse_policy
from democrai_sandbox.kernel.helper.tables import application_of, tables

from .client import HelperClient

if TYPE_CHECKING:
    from democrai_sandbox.kernel.helper.policy import Endpoint
    from democrai_sandbox.kernel.settings import OsSettings

_PID = "{pid}"
_LIVES = frozenset({"not_a_descendant", "foreign_uid", "confined", "busy"})
"""Refusal that only a helper sends."""


class Seen(NamedTuple):
    """Running helper, or files left by one."""

    application: int
    """0 when the path of the socket does not contain it."""
    socket: str
    answers: bool
    why: str
    """Reason why it does not answer."""
    policy_file: str
    endpoints: tuple[Endpoint, ...] | None
    """Endpoints of its policy file; None if the file cannot be read."""


class Chain(NamedTuple):
    """Rules in a packet filter."""

    family: str
    name: str
    application: int
    rules: int
    in_force: bool
    """Whether packets pass through it."""
    is_left: bool
    """Whether its application has ended, so that the next helper removes it."""


def helpers(settings: OsSettings, *, data_dir: str, state_dir: str) -> tuple[Seen, ...]:
    """Return the helpers found at the sockets of a configuration, sorted by application process id."""
    socket = settings.helper_socket or f"{state_dir}/os_sandbox_helper_{_PID}.sock"
    policy = settings.policy_file or f"{data_dir}/os_sandbox_allowlist_{_PID}.json"
    return tuple(sorted(_seen(path, pid, policy.replace(_PID, str(pid))) for path, pid in _sockets(socket)))


def chains() -> tuple[Chain, ...]:
    """Return all our rules on this machine; raise ``HelperFailed`` if they cannot be read."""
    try:
        found, _ = tables(Commands())
        listings = [(table.family.value, table.read()) for table in found]
    except Refused as refused:
        raise HelperFailed(refused.error, fix=refused.fix, reason=refused.reason) from None
    return tuple(
        Chain(
            family,
            name,
            application_of(name),
            count,
            any(jump.chain == name for jump in listing.jumps),
            not Path(f"/proc/{application_of(name)}").exists(),
        )
        for family, listing in listings
        for name, count in listing.chains.items()
    )


def _sockets(template: str) -> list[tuple[str, int]]:
    parts = template.split(_PID)
    if len(parts) == 1:
        return [(template, 0)] if os.path.lexists(template) else []
    shape = re.compile("([0-9]+)".join(map(re.escape, parts)))
    found = ((path, shape.fullmatch(path)) for path in glob.glob("*".join(map(glob.escape, parts))))  # noqa: PTH207 - texts
    return [(path, int(match[1])) for path, match in found if match is not None]


def _seen(socket: str, pid: int, policy_file: str) -> Seen:
    try:
        HelperClient(socket).ping()
        answers, why = True, ""
    except HelperFailed as error:
        answers = error.reason in _LIVES
        why = "" if answers else error.what
    return Seen(pid, socket, answers, why, policy_file, _endpoints(policy_file))


def _endpoints(path: str) -> tuple[Endpoint, ...] | None:
    try:
        return parse_policy(Path(path).read_bytes(), path).endpoints
    except (OSError, Refused):
        return None
