"""``democrai-sandbox helper``: run and list the privileged helper, and print its installation files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import CommandMisused, CommandRefused

from .connection import configuration
from .output import Exit, Mood, visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from democrai_sandbox.kernel.egress.inspection import FoundChain, FoundHelper
    from democrai_sandbox.kernel.helper.install_files import Installable

    from .output import CommandOutput

_MOODS = {"answers": Mood.OK, "silent": Mood.BAD}


# ---- run -------------------------------------------------------------------------------------------------------------


def run_helper(options: argparse.Namespace, output: CommandOutput) -> int:
    """Replace this process by the helper, the program that sudo and polkit permit."""
    from democrai_sandbox.kernel.egress.helper_process import elevation  # noqa: PLC0415 - takes its time
    from democrai_sandbox.kernel.helper.protocol import helper_command  # noqa: PLC0415

    words = [*elevation().prefix, *helper_command(), *_told(options)]
    output.progress("")
    os.execv(words[0], words)  # noqa: S606 - without a shell, on purpose


def _told(options: argparse.Namespace) -> list[str]:
    from democrai_sandbox.kernel.settings import policy_path, socket_path  # noqa: PLC0415 - takes its time

    pid = _number("--parent-pid", options.parent_pid)
    socket, policy, seconds = options.socket, options.policy_file, options.refresh_seconds
    if socket is None or policy is None or seconds is None:
        settings = configuration(options).settings
        socket = socket or socket_path(settings.os.helper_socket, settings.state_dir, pid)
        policy = policy or policy_path(settings.os.policy_file, settings.data_dir, pid)
        seconds = seconds if seconds is not None else str(settings.os.refresh_seconds)
    told = ["--socket", socket, "--policy-file", policy, "--refresh-seconds", seconds, "--parent-pid", str(pid)]
    return [*told, "--debug"] if options.debug else told


# ---- status ----------------------------------------------------------------------------------------------------------


def run_status(options: argparse.Namespace, output: CommandOutput) -> int:
    """List running helpers and their allowlists."""
    from democrai_sandbox.kernel.egress.inspection import list_chains, list_helpers  # noqa: PLC0415 - takes its time

    settings = configuration(options).settings
    found = list_helpers(settings.os, data_dir=settings.data_dir, state_dir=settings.state_dir)
    rules = list_chains() if os.geteuid() == 0 else None
    works = all(each.answers and _in_force(each, rules) for each in found)
    is_well = works and (bool(found) or not settings.os.enabled)
    if output.is_json:
        output.data("helper.status/1", _status_data(found, rules, ok=is_well))
        return Exit.OK if is_well else Exit.FAILED
    rows = (
        (
            each.application or "-",
            "answers" if each.answers else "silent",
            "?" if each.endpoints is None else len(each.endpoints),
            _rules(each, rules),
            each.socket,
        )
        for each in found
    )
    output.table(("APPLICATION", "HELPER", "ENDPOINTS", "RULES", "SOCKET"), rows, _MOODS)
    for each in found:
        if not each.answers:
            output.say(visible(f"{each.application}: {each.why}"), Mood.WARNING)
    for chain in rules or ():
        if chain.is_left:
            output.say(f"{chain.family}: {chain.name} is left over from an ended process; the next helper removes it")
    if not found:
        output.say(
            "no helper runs for this configuration" + ("" if settings.os.enabled else ", which does not enable it")
        )
    return Exit.OK if is_well else Exit.FAILED


def _in_force(each: FoundHelper, rules: Iterable[FoundChain] | None) -> bool:
    if rules is None or not each.application:
        return True  # unknown
    return any(rule.application == each.application and rule.in_force for rule in rules)


def _rules(each: FoundHelper, rules: Iterable[FoundChain] | None) -> str:
    if rules is None:
        return "visible to root only"
    own = [rule for rule in rules if rule.application == each.application and rule.in_force]
    return ", ".join(f"{rule.family} {rule.rules}" for rule in own) or "none"


def _status_data(found: Iterable[FoundHelper], rules: Iterable[FoundChain] | None, *, ok: bool) -> dict[str, Any]:
    helpers = [
        {
            "application": each.application,
            "socket": each.socket,
            "answers": each.answers,
            "why": each.why,
            "policy_file": each.policy_file,
            "endpoints": None if each.endpoints is None else [one._asdict() for one in each.endpoints],
        }
        for each in found
    ]
    return {"ok": ok, "helpers": helpers, "chains": None if rules is None else [rule._asdict() for rule in rules]}


# ---- apply -----------------------------------------------------------------------------------------------------------


def run_apply(options: argparse.Namespace, output: CommandOutput) -> int:
    """Print the packet filter rules of a policy file."""
    from democrai_sandbox.kernel.egress.inspection import dry_run  # noqa: PLC0415 - takes its time

    output.progress("resolving names")
    found = dry_run(options.file, _number("--parent-pid", options.parent_pid))
    if output.is_json:
        output.data(
            "helper.apply/1",
            {
                "digest": found.policy.digest,
                "endpoints": [one._asdict() for one in found.policy.endpoints],
                "transactions": [each._asdict() for each in found.transactions],
                "unresolved": list(found.unresolved),
                "withheld": list(found.withheld),
            },
        )
        return Exit.OK
    for each in found.transactions:
        output.line(f"# {each.program} --noflush", Mood.FAINT)
        output.line("\n".join(map(visible, each.text.rstrip("\n").split("\n"))))
    for names, why in (
        (found.unresolved, "does not resolve now"),
        (found.withheld, "resolves to this machine or a link-local address"),
    ):
        for name in names:
            output.say(visible(f"{name} {why}: no rule is made for it"), Mood.WARNING)
    return Exit.OK


# ---- what is installed -----------------------------------------------------------------------------------------------


def run_sudoers(options: argparse.Namespace, output: CommandOutput) -> int:
    """Print the rule for sudo."""
    from democrai_sandbox.kernel.helper.install_files import sudoers_file  # noqa: PLC0415 - takes its time

    return _printed(output, "helper.sudoers/1", lambda: sudoers_file(_user(options.user)))


def run_polkit(options: argparse.Namespace, output: CommandOutput) -> int:
    """Print the rule for pkexec."""
    from democrai_sandbox.kernel.helper.install_files import polkit_file  # noqa: PLC0415 - takes its time

    return _printed(output, "helper.polkit/1", lambda: polkit_file(_user(options.user)))


def run_systemd(options: argparse.Namespace, output: CommandOutput) -> int:
    """Print the unit for a service, with the paths of the configuration."""
    from democrai_sandbox.host.config.keys import DEFAULT  # noqa: PLC0415 - takes its time
    from democrai_sandbox.kernel.helper.install_files import ServicePaths, systemd_file  # noqa: PLC0415

    state, data = _folder("--state-dir", options.state_dir), _folder("--data-dir", options.data_dir)
    given = options.refresh_seconds
    seconds = None if given is None else _number("--refresh-seconds", given)
    loaded = configuration(options)
    settings = loaded.settings
    if data is None:
        moved = state is not None and loaded.origins["/data_dir"].source == DEFAULT
        data = f"{state}/data" if moved else settings.data_dir
    paths = ServicePaths(state or settings.state_dir, data, settings.os.helper_socket, settings.os.policy_file)
    if not paths.has_socket_per_process:
        raise CommandRefused(
            f"sandbox.os.helper_socket is {settings.os.helper_socket!a}, the same for every process",
            fix="end it with {pid}.sock, or remove the key: each process has a separate helper",
        )
    chosen = settings.os.refresh_seconds if seconds is None else seconds
    return _printed(output, "helper.systemd/1", lambda: systemd_file(paths, chosen))


def _printed(output: CommandOutput, schema: str, make: Any) -> int:
    """Print a file; warn and exit with 1 if installing it would be dangerous."""
    try:
        made: Installable = make()
    except ValueError as error:
        raise CommandRefused(str(error), fix="install Python and this package at such a path") from None
    if output.is_json:
        output.data(schema, {"text": made.text, "warnings": list(made.warnings)})
    else:
        output.line(made.text.rstrip("\n"))
    for warning in made.warnings:
        output.say(visible(warning), Mood.WARNING)
    return Exit.FAILED if made.warnings else Exit.OK


def _user(name: str | None) -> str:
    import pwd  # noqa: PLC0415 - seldom needed

    if name is None and os.geteuid() == 0:
        raise CommandMisused("root does not need a rule", fix="add --user with the user of the application")
    try:
        return pwd.getpwuid(os.geteuid()).pw_name if name is None else pwd.getpwnam(name).pw_name
    except (KeyError, ValueError):
        raise CommandMisused(f"user {name!a} does not exist on this machine", fix="create the user first") from None


def _folder(option: str, text: str | None) -> str | None:
    if text is None:
        return None
    if not text.startswith("/") or not text.isprintable():
        raise CommandMisused(f"{option} is not an absolute path: {text!a}", fix="give a path that begins with /")
    return text.rstrip("/")


def _number(option: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 11):  # noqa: PLR2004 - more is nothing of ours
        raise CommandMisused(f"{option} is not a number: {text!a}", fix="give decimal digits")
    return int(text)
