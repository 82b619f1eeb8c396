"""Pasted error lines: recognized by code, class or documented sentence, never by similarity."""

from __future__ import annotations

import json

import pytest

from democrai_sandbox import errors
from democrai_sandbox.errors.catalogue import ENTRIES, entry_of
from democrai_sandbox.errors.error_line import LONGEST, entry_for, read_line
from tests.services.rows import rows

PROBLEM = {
    "type": "about:blank",
    "status": 403,
    "code": "sandbox_network_denied",
    "detail": "External URL is locked. (sandbox_network_denied:weather:https://a.example/v1)",
    "subject": "module:weather",
    "operation": "receive",
    "target": "https://a.example/v1",
    "pending_request_id": "01J",
}
TRACEBACK = """Traceback (most recent call last):
  File "/srv/modules/reports/module.py", line 3, in show
democrai_sandbox.errors.FilesystemDenied: sandbox_filesystem_denied:reports.x:/etc/passwd
  module:reports -> tool:reports.x asked for: read /etc/passwd
Add to "access" of the declaration of tool reports.x"""
LOGGED = {
    "level": "error",
    "message": "it failed",
    "traceback": "T\ndemocrai_sandbox.errors.ModuleDenied: sandbox_module_denied:ctypes",
}


@rows(
    ("line", "code", "subject", "target"),
    [
        ("sandbox_filesystem_denied:reports:/etc/passwd", "sandbox_filesystem_denied", "reports", "/etc/passwd"),
        ("  'sandbox_filesystem_denied:a:b:/x y' was", "sandbox_filesystem_denied", "a:b", "/x y"),
        ("sandbox_filesystem_fd_denied:reports:dir_fd", "sandbox_filesystem_fd_denied", "reports", "dir_fd"),
        ("PermissionError: sandbox_module_denied:ctypes", "sandbox_module_denied", "", "ctypes"),
        ("sandbox_subprocess_denied:subprocess.Popen", "sandbox_subprocess_denied", "", "subprocess.Popen"),
        ("sandbox_env_denied:DEMOCRAI_X", "sandbox_env_denied", "", "DEMOCRAI_X"),
        (
            "External URL is locked. (sandbox_network_denied:weather:https://a.example/v1(2))",
            *("sandbox_network_denied", "weather", "https://a.example/v1(2)"),
        ),
        ("External URL is locked.", "sandbox_network_denied", "", ""),
        ("network_target_missing", "network_target_missing", "", ""),
        ("external_access_admin_required", "external_access_admin_required", "", ""),
        ("sandbox_external_access_check_failed", "sandbox_external_access_check_failed", "", ""),
        ("os_sandbox_helper_failed: nobody answers; to fix it: start it", "os_sandbox_helper_failed", "", ""),
        ("12:03:04 error   worker_crashed: it was ended by signal 9", "worker_crashed", "", ""),
        ("democrai_sandbox.policy.problems.InvalidInputError: /access/0: no", "invalid_input", "", ""),
        ("no_iptables: iptables-restore is missing", "os_sandbox_helper_failed", "", ""),
        ("pending", "pending", "", ""),
        ("origin_refused: This was not sent by a page of this site.", "origin_refused", "", ""),
        (json.dumps(PROBLEM, indent=2), "sandbox_network_denied", "module:weather", "https://a.example/v1"),
        (f"old\n{json.dumps(LOGGED)}\n", "sandbox_module_denied", "", "ctypes"),
        (TRACEBACK, "sandbox_filesystem_denied", "tool:reports.x", "/etc/passwd"),
        ("x" * LONGEST + "\nnetwork_target_missing", "network_target_missing", "", ""),
    ],
)
def test_lines_of_ours(line, code, subject, target):
    """A line is parsed into its code and, if present, its subject and target."""
    found = read_line(line)
    assert (found.entry.code, found.subject, found.target) == (code, subject, target)
    assert found.entry.is_ours


def test_a_denial_in_full_tells_all_that_the_call_needed():
    """The entry for opening a file to write has both operations; the entry of another target is ignored."""
    denial = errors.FilesystemDenied(
        "/srv/x", subject="reports", subject_kind="module", operations=("create", "modify")
    )
    found = read_line(denial.diagnostics())
    assert (found.operation, found.operations) == ("create", ("create", "modify"))
    assert json.loads(entry_for(found))["operation"] == ["create", "modify"]
    elsewhere = json.dumps({"operation": ["read", "delete"], "target": "/srv/y"})
    assert read_line(f"{TRACEBACK}\n{elsewhere}").operations == ()


def test_the_phase_is_told_by_the_hint_or_by_the_installation():
    """The phase also completes a subject without kind; an installation of another subject is ignored."""
    for installing, phase in ((True, "install"), (False, "runtime")):
        denial = errors.FilesystemDenied(
            "/srv/x", subject="voice", subject_kind="engine", operations=("read",), installing=installing
        )
        assert read_line(denial.diagnostics()).phase == phase
    stopped = "extension_install_failed: extractor:scan: pip failed\n  refused: sandbox_filesystem_denied:{}:/srv/x"
    found = read_line(stopped.format("scan"))
    assert (found.subject, found.phase) == ("extractor:scan", "install")
    other = read_line(stopped.format("voice"))
    assert (other.subject, other.phase) == ("voice", "")


def test_what_a_line_tells_beside_that():
    """Other parts: the call chain and operation of a denial, the request of a document, a helper's word, a detail."""
    found = read_line(TRACEBACK)
    assert (found.chain, found.operation) == (("module:reports", "tool:reports.x"), "read")
    assert read_line(json.dumps(PROBLEM)).request_id == "01J"
    assert read_line("no_iptables: x").word.word == "no_iptables"
    assert read_line("sandbox_network_denied:x:socket:foreign").word.word == "socket:foreign"
    assert read_line("sandbox_network_denied:x:socket:16/3/0").word.word == "socket:<family>/<type>/<protocol>"
    assert read_line("os_sandbox_required: landlock is off").detail == "landlock is off"


@rows(
    ("line", "code"),
    [
        ("ConnectionRefusedError: [Errno 111] Connection refused", "symptom_connection_refused"),
        ("curl: (56) Recv failure: Connection reset by peer", "symptom_connection_refused"),
        ("PermissionError: [Errno 1] Operation not permitted", "symptom_operation_not_permitted"),
        ("PermissionError: [Errno 13] Permission denied: '/srv/x'", "symptom_permission_denied"),
        ("died with <Signals.SIGSYS: 31>.", "symptom_bad_system_call"),
        ("Bad system call (core dumped)", "symptom_bad_system_call"),
    ],
)
def test_symptoms_are_no_more_than_that(line, code):
    """Errors that can have other causes are reported as symptoms."""
    found = read_line(line)
    assert (found.entry.code, found.entry.is_ours) == (code, False)


@rows(
    "line",
    [
        *("", " \n ", "hello", "KeyError: 'x'", "{}", "[1]", '{"code": "zzz"}', '{"code": 7}', "{" * 5000),
        *("my_sandbox_filesystem_denied:a:/b", "sandbox_filesystem_denied_total 3", "/var/sandbox_error.log"),
        *("payment pending", "the worker_failed counter", "busy", "request denied by policy", "\x1b[31m\x00"),
    ],
)
def test_what_is_not_ours_is_refused(line):
    """A word that is similar to a code is not recognized."""
    with pytest.raises(errors.ErrorUnknown):
        read_line(line)


def test_every_error_with_a_shape_is_read_from_its_own_text():
    """The text of each exception is parsed into its entry."""
    denial = errors.NetworkDenied("https://a.example", subject="w", subject_kind="module", operations=("send",))
    for error in (denial, errors.EnvironmentDenied("DEMOCRAI_X"), errors.KernelRefused("it is off", fix="turn it on")):
        for text in (str(error), error.diagnostics()):
            assert read_line(text).entry is ENTRIES[error.code]
    assert read_line(denial.diagnostics()).operation == "send"


def test_the_entry_that_would_allow_it():
    """The entry has the operation of the line, or all valid operations."""
    assert json.loads(entry_for(read_line(TRACEBACK))) == {
        "resource_type": "filesystem",
        "operation": "read",
        "target": "/etc/passwd",
    }
    assert "<connect, receive, send>" in entry_for(read_line("sandbox_network_denied:w:a.example:443"))
    assert entry_for(read_line("sandbox_network_denied:x:socket:foreign")) == ""
    assert entry_for(read_line("network_target_missing")) == ""


def test_a_code_that_there_is_not_is_refused_with_the_nearest():
    """An unknown code is refused with the nearest one."""
    with pytest.raises(errors.ErrorUnknown, match=r"\bsandbox_network_denied\b"):
        entry_of("sandbox_netwrk_denied")
