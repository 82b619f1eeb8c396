"""Guard of the install phase, entered first in each of its processes; one that cannot enter it ends immediately.

During its build, the environment has a start file, so that processes on its interpreter run under the same guard.
"""

from __future__ import annotations

import _thread
import itertools
import json
import os
import signal
import socket
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypedDict

from democrai_sandbox.guard import AccessQuestion, configure_guard
from democrai_sandbox.guard.contexts import ACCESS, IDENTITY, SUBJECT, SUBJECT_CHAIN, SUBJECT_KIND, make_guard
from democrai_sandbox.policy import AccessDecision, DecisionCode, chain_from_list, rules_from_json

if TYPE_CHECKING:
    from pathlib import Path

    from democrai_sandbox.errors import SandboxDenied

CONTROL = "DEMOCRAI_INSTALL_CONTROL"
"""Descriptor by which a child reaches the host. Its children do not inherit it: ``DEMOCRAI_*`` is set anew for them."""
NAME = "democrai_start"

_START_FILE = """# Written by the installer: enters the guard in this environment for as long as it is being built.
import os

try:
    import importlib.util

    facts = {facts}
    spec = importlib.util.spec_from_file_location("democrai_install_runner", facts["runner"])
    runner = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(runner)
    runner.start(facts)
except BaseException:
    import traceback

    traceback.print_exc()
    os._exit(70)
"""


class InstallFacts(TypedDict):
    """Content of a start file. The host sets all of it, and nothing in it is secret."""

    runner: str
    """First file of every process."""
    environment: str
    packages: dict[str, str]
    """Packages of the host that can be imported in the environment."""
    code: list[str]
    """Folders of their code."""
    protected: list[str]
    own_write: list[str]
    allowed_imports: list[str]
    temporary: str
    asks: bool
    """Whether the host decides about undeclared access; children of pip cannot ask, and are denied."""


def write_start_files(site_packages: Path, facts: InstallFacts) -> tuple[Path, Path]:
    """Write the start files into an environment, and return them."""
    code, hook = site_packages / f"{NAME}.py", site_packages / f"{NAME}.pth"
    code.write_text(_START_FILE.replace("{facts}", repr(dict(facts))), encoding="utf-8")
    hook.write_text(f"import {NAME}\n", encoding="utf-8")
    return code, hook


def arm(facts: InstallFacts) -> None:
    """Enter the guard that the process environment describes, for the rest of this process."""
    control = os.environ.get(CONTROL)
    link = HostLink(int(control)) if control else None
    configure_guard(
        decider=link if facts["asks"] else None,
        recorder=link,
        protected_paths=facts["protected"],
        code_paths=facts["code"],
    )
    given = os.environ
    guard = make_guard(
        subject=given[SUBJECT],
        subject_kind=given[SUBJECT_KIND],
        access=rules_from_json(given[ACCESS]),
        ancestors=chain_from_list(json.loads(given[SUBJECT_CHAIN])),
        allowed_imports=facts["allowed_imports"],
        own_write=facts["own_write"],
        allow_subprocess=True,
        user_id=given.get(IDENTITY["user_id"]),
        organization_id=given.get(IDENTITY["organization_id"]),
        session_key=given.get(IDENTITY["session_key"]),
    )
    guard.__enter__()


class HostLink:
    """Connection to the host: asks for decisions, reports denials, and stops all processes when the host is gone."""

    def __init__(self, descriptor: int) -> None:
        """Take over the socket. The reading thread has no guard, and does not appear in lists of threads."""
        os.set_inheritable(descriptor, False)  # noqa: FBT003 - signature of the standard library
        self._socket = socket.socket(fileno=descriptor)
        self._process = os.getpid()
        self._turn = threading.Lock()
        self._numbers = itertools.count(1)
        self._answers: SimpleQueue[tuple[int, Any]] = SimpleQueue()
        _thread.start_new_thread(self._listen, ())

    def decide(self, question: AccessQuestion) -> bool | AccessDecision:
        """Ask the host, one question at a time."""
        if os.getpid() != self._process:
            # The answer would reach the parent process, which would take it for the answer to its own question.
            raise ConnectionError("a forked process cannot ask the host")
        with self._turn:
            number = next(self._numbers)
            self._send({"number": number, "ask": list(question)})
            answered, answer = self._answers.get()
            while answered != number:
                answered, answer = self._answers.get()
        if answer is None:
            raise ConnectionError("the host could not decide")
        if type(answer) is bool:
            return answer
        allowed, code, *rest = answer
        return AccessDecision(allowed, DecisionCode(code), *rest)

    def record(self, denial: SandboxDenied) -> None:
        """Report a denial to the host, which shows it with the error of a failed installation."""
        if os.getpid() == self._process:
            self._send({"refused": str(denial)[:2000], "code": denial.code})

    def _send(self, message: dict[str, Any]) -> None:
        self._socket.sendall(json.dumps(message).encode() + b"\n")

    def _listen(self) -> None:
        try:
            with self._socket.makefile("rb") as stream:
                for line in stream:
                    told = json.loads(line)
                    self._answers.put((told["number"], told["answer"]))
        finally:
            # The host is gone, and with it the build lock, so stop all processes of the build.
            os.killpg(os.getpgid(0), signal.SIGKILL)
