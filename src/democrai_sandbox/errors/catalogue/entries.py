"""Entries of the catalog: made from the error classes, and written here for codes and symptoms without a class."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from inspect import cleandoc
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection

    from democrai_sandbox.policy import SandboxError
    from democrai_sandbox.policy.problems import Word


class ErrorLayer(StrEnum):
    """Part of the sandbox that reports a code."""

    GUARD = "guard"
    ACCESS = "access service"
    RUNTIME = "runtime"
    KERNEL = "kernel layer"
    HOST = "host"
    CONSOLE = "console and API"
    COMMAND = "command line"
    INPUT = "input"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEntry:
    """Help for one code, in Markdown without links."""

    code: str
    title: str
    layer: ErrorLayer
    shape: str = ""
    """The documented form of the error line."""
    meaning: str
    cause: str
    fix: str
    example: str
    classes: tuple[str, ...] = ()
    """The exceptions with this code; empty for a code that only answers contain."""
    bases: tuple[str, ...] = ()
    """The base classes to catch, apart from ``SandboxError``."""
    words: tuple[Word, ...] = ()
    see: tuple[str, ...] = ()
    """Pages in ``docs``, with an anchor."""
    is_ours: bool = True
    """False for a symptom that can have other causes than the sandbox."""


_PART = re.compile(r"^(Shape|Cause|Fix|Example|See):", re.MULTILINE)


def entry_of_class(kind: type[SandboxError], layer: ErrorLayer, others: Collection[str] = ()) -> ErrorEntry:
    """Return the entry of an error class: its docstring is the title and the meaning.

    ``others`` are subclasses with the same code. Under ``python -OO``, which removes docstrings, the code is the title.
    """
    title, _, meaning = cleandoc(kind.__doc__ or kind.code).replace("``", "`").partition("\n")
    return ErrorEntry(
        code=kind.code,
        title=title.removesuffix("."),
        layer=layer,
        meaning=_one_line(meaning),
        **_guidance(kind.guidance),
        classes=(kind.__name__, *others),
        bases=tuple(base.__name__ for base in kind.__bases__ if base.__name__ not in {"SandboxError", "Exception"}),
        words=vars(kind).get("guidance_words", ()),
    )


def _entries(layer: ErrorLayer, text: str, *, is_ours: bool = True) -> tuple[ErrorEntry, ...]:
    """Return the entries of a text: headings ``# code: title``, each followed by the meaning and the guidance."""
    made = []
    for section in f"\n{text}".split("\n# ")[1:]:
        heading, _, rest = section.partition("\n")
        code, _, title = heading.partition(": ")
        meaning = _one_line(_PART.split(rest)[0])
        given = _guidance(rest)
        made.append(ErrorEntry(code=code, title=title, layer=layer, meaning=meaning, **given, is_ours=is_ours))
    return tuple(made)


def _guidance(text: str) -> dict[str, Any]:
    """Return the fields of an entry that a text has as ``Cause:``, ``Fix:``, ``Example:``, ``Shape:`` and ``See:``."""
    _, *parts = _PART.split(cleandoc(text))
    found = dict(zip(parts[::2], parts[1::2], strict=True))
    return {
        "shape": found.get("Shape", "").strip(),
        "cause": _one_line(found["Cause"]),
        "fix": _one_line(found["Fix"]),
        "example": found["Example"].strip(),
        "see": tuple(found.get("See", "").split()),
    }


def _one_line(text: str) -> str:
    return " ".join(text.split())


DECISIONS = _entries(
    ErrorLayer.ACCESS,
    """
# sandbox_allowlist: Allowed by a declaration
The access check answered yes. No administrator decided about it.
Cause: An entry of the manifest of the subject covers the access, or every subject may use it.
Fix: No action is needed. To forbid the access, remove the entry: a denial does not override a declaration.
Example:
check_external_access(resource_type="filesystem", operation="read", target="/srv/sales/may.csv")
-> allowed=True, code="sandbox_allowlist"      (the manifest declares read on /srv/sales)
See: approvals.md

# session_approval: Approved for this session
The access check answered yes. The approval ends with the session or when it is revoked.
Cause: An administrator approved the access for the session of the user. Other sessions are not covered.
Fix: No action is needed. Revoke the approval to end it earlier.
Example:
$ democrai-sandbox requests approve 01K9A --session
-> the next check of the same user in the same session: allowed=True, code="session_approval"
See: approvals.md

# permanent_approval: Approved permanently
The access check answered yes, for all users and sessions of the subject.
Cause: An administrator approved the access permanently or for a time that is not over.
Fix: No action is needed. Revoke the approval to end it.
Example:
$ democrai-sandbox requests approve 01K9A --permanent
-> the next check of any user: allowed=True, code="permanent_approval"
See: approvals.md

# denied: Denied by an administrator
The access check answered no. Checking again files no request.
Cause: A recorded denial covers exactly this access or more. The message has the reason, if one was given.
Fix: Let an administrator revoke the denial with `democrai-sandbox approvals revoke` or in the console.
Example:
$ democrai-sandbox requests deny 01K9A --reason 'use the internal mirror'
-> the next check: allowed=False, code="denied", and the message has the reason
See: approvals.md

# pending: A request waits for a decision
The access check answered no for now. `request_id` is the id of the pending request.
Cause: The access is neither declared nor decided, and the check filed a request or found the same one.
Fix: Wait until an administrator decides. An approval takes effect without a restart.
Example:
check_external_access(resource_type="network", operation="receive", target="https://api.example.com")
-> allowed=False, code="pending", request_id="01K9A"
See: approvals.md

# not_enabled: Neither declared nor approved
The access check answered no, and no request was filed.
Cause: The check used `register_request=False`, the subject has the maximum number of pending requests, or the access
cannot be approved.
Fix: Declare the access, or check with `register_request=True`.
Example:
check_external_access(..., target="https://api.example.com", register_request=False)
-> allowed=False, code="not_enabled", message="External URL is locked."
See: approvals.md
""",
)

TOOLS = _entries(
    ErrorLayer.RUNTIME,
    """
# unknown_tool: The model called an unknown tool
The model gets this code as the result of its call, and the run continues.
Cause: The model invented the name, or the agent does not list the tool.
Fix: Add the tool to `tools` of the agent, if the agent should have it.
Example:
The model calls get_wether, and the agent has the tool get_weather:
-> {"error": {"code": "unknown_tool", ...}}
See: ai.md

# invalid_arguments: The model passed invalid arguments to a tool
The tool did not run. The model gets this code with all problems, and the run continues.
Cause: The arguments are not valid JSON or do not match the schema of the tool.
Fix: If it happens often, improve the description and the parameter names of the tool.
Example:
The model calls get_weather with {"city": 7}, and the parameter is a string:
-> {"error": {"code": "invalid_arguments", ...}}
See: ai.md

# invalid_result: A tool returned a value that is not plain data
The tool ran. The model gets this code instead of the result, and the run continues.
Cause: The tool returned a generator, an open file, bytes or an object of a class.
Fix: Return strings, numbers, lists and dicts, or values that are converted to them, such as dataclasses.
Example:
A tool returns open(path) instead of open(path).read():
-> {"error": {"code": "invalid_result", ...}}
See: ai.md modules.md

# tool_failed: A tool raised an error
The model gets this code, and the run continues. The log of the host has the traceback.
Cause: A bug in the tool, or a failure of a service that it uses.
Fix: Find the traceback in the log of the host, and fix the tool.
Example:
A tool divides by the number of results, and finds none:
-> {"error": {"code": "tool_failed", ...}}
See: ai.md

# tool_timeout: A tool exceeded its timeout
The call was canceled. The model gets this code, and the run continues.
Cause: The tool took longer than `tool_timeout` of the agent.
Fix: Raise `tool_timeout` of the agent, if the host allows it, or let the tool do less per call.
Example:
tool_timeout is 10, and the tool downloads a file for 30 s:
-> {"error": {"code": "tool_timeout", ...}}
See: ai.md
""",
)

ANSWERS = _entries(
    ErrorLayer.CONSOLE,
    """
# host_unknown: The HTTP request names another host
Nothing was done. The status is 421.
Cause: The `Host` header is not a name of this console. Only the health paths, and requests with a token to the API and
the metrics, may use any name.
Fix: Set `server.public_url` to the address that users open.
Example:
server.public_url is https://sandbox.example.com, and a user opens https://10.0.0.5/
-> 421 host_unknown
See: configuration.md

# origin_refused: The HTTP request comes from a page of another site
Nothing was changed. The check protects users from cross-site request forgery.
Cause: A page of another site sent it, a proxy removed the `Origin` header, or a program sent a session cookie without
that header.
Fix: Let programs send a token instead of a cookie. Behind a proxy, set `server.public_url` and forward `Host` and
`Origin`.
Example:
curl -X POST --cookie 'session=...' https://sandbox.example.com/requests/decide
-> 403 origin_refused
See: api.md

# body_too_large: The body is too large
Nothing was done. The status is 413, and the text has the limit.
Cause: The body exceeds the limit of this address.
Fix: Send less data per HTTP request.
Example:
POST /api/v1/requests/decide with 10,000 ids
-> 413 {"code": "body_too_large", ...}
See: api.md

# request_timeout: The body did not arrive in time
The body did not arrive within a minute. Nothing was done. The status is 408.
Cause: The connection is slow or broken, or `Content-Length` is larger than the body.
Fix: Send the HTTP request again, with the right `Content-Length`.
Example:
POST /api/v1/requests/decide, Content-Length: 500, and a body of 400 bytes
-> 408 {"code": "request_timeout", ...}
See: api.md

# bad_request: The body cannot be read
Nothing was done. The status is 400.
Cause: The body is not valid JSON, not UTF-8, or not a form.
Fix: Correct the body. `/api/v1/openapi.json` describes the body of every address.
Example:
POST /api/v1/requests/decide   {"request_ids": [
-> 400 {"code": "bad_request", "detail": "The body is not JSON: ...", ...}
See: api.md

# not_found: No page or API call has this address
The path itself is unknown. A known path with an unknown id has a more specific code.
Cause: The address is mistyped, or belongs to another version.
Fix: Use a path from `/api/v1/openapi.json`.
Example:
GET /api/v1/request
-> 404 {"code": "not_found", ...}      (the path is /api/v1/requests)
See: api.md

# method_not_allowed: The address does not accept this method
Nothing was done. The status is 405, and the `Allow` header lists the accepted methods.
Cause: The path is right, but the HTTP method is not.
Fix: Use a method from the `Allow` header or from `/api/v1/openapi.json`.
Example:
DELETE /api/v1/requests
-> 405 {"code": "method_not_allowed", ...}   Allow: GET
See: api.md

# service_unavailable: The node stopped before it could answer
The operation may or may not have completed. The status is 503.
Cause: The node was stopped or restarted, and the HTTP request ran longer than the ten seconds it waits.
Fix: Check whether the operation completed; if not, retry here or on another node.
Example:
systemctl restart democrai-sandbox, while a module runs for 30 s
-> 503 {"code": "service_unavailable", ...}
See: serving.md

# internal_error: Internal error
An unexpected error. Unfinished changes were not stored. The status is 500.
Cause: A bug in this package. The log has the traceback.
Fix: Find the `request_id` of the answer in the log, and report the traceback.
Example:
-> 500 {"code": "internal_error", "request_id": "01K9A", ...}
$ grep 01K9A /var/log/democrai-sandbox.log
See: monitoring.md

# skipped: One of several requests was left unchanged
Other requests of the same call were decided; this one stays pending. The text has the reason.
Cause: Usually an approval for a session, while the request has no session.
Fix: Decide about this request separately, permanently or for a time.
Example:
POST /api/v1/requests/decide   (approve for the session; one request came from a task without a session)
-> its result has "code": "skipped"
See: approvals.md
""",
)


SYMPTOMS = _entries(
    ErrorLayer.KERNEL,
    """
# symptom_connection_refused: A connection is refused or reset
The packet filter resets a TCP connection to a target outside of the egress allowlist. A server that does not listen
looks the same from inside a program.
Shape: [Errno 111] Connection refused
Cause: If the guard allows the target, one of these: the host did not resolve, or resolves to addresses that the packet
filter does not know; another port is declared or approved; the helper does not run or is not reachable at
`sandbox.os.helper_socket`; the policy file at `sandbox.os.policy_file` is missing, belongs to another user, or is
writable by its group or by all; the process is not in the cgroup of the helper; two instances share a policy file or a
helper socket; or the decision was made on another node and `network.stream.type` does not reach this one.
Fix: Read the lines `egress` and `helper` of `democrai-sandbox status`: they show the rules in force, the hosts that did
not resolve, and the last update. Run `democrai-sandbox explain` with subject, operation and target: it reports a
disagreement between guard and packet filter. Enable `sandbox.os.enabled` only to filter the egress of the whole
process. Give each instance a separate `sandbox.os.policy_file` and `sandbox.os.helper_socket`, or set neither: the
defaults never collide. With several nodes, use a stream that reaches all of them. `DEMOCRAI_DEBUG_OS_SANDBOX_FLOW=1`
logs every step of the allowlist, `DEMOCRAI_DEBUG_MEDIA_FLOW=1` those of media and of external access.
Example:
socket.create_connection(("api.example.com", 8443))      # only port 443 is approved
-> ConnectionRefusedError: [Errno 111] Connection refused
See: os-enforcement.md

# symptom_permission_denied: The system denies access to a file, without a code
A denial of the guard always has a code. Without one, the system refused: the owner and mode of the file, or Landlock,
which restricts the application and its children to their paths.
Shape: [Errno 13] Permission denied
Cause: The path was not in the lists of Landlock when the process started. In a worker, a child or `democrai-sandbox
run`, the declared path did not exist at that time: Landlock allows only existing paths, so a file that the process
creates later cannot be declared by itself.
Fix: Run `democrai-sandbox explain` with subject, operation and target: it says whether Landlock blocks a path that the
guard allows. Then add the path to `sandbox.os.landlock.extra_read_paths` or `extra_write_paths` and restart. For a new
file of a worker or child, declare its parent folder, which must exist. Otherwise check the owner and mode of the file.
Example:
open("/srv/out/new.csv", "w")      # in a worker; /srv/out/new.csv is declared and does not exist yet
-> PermissionError: [Errno 13] Permission denied: '/srv/out/new.csv'
See: os-enforcement.md

# symptom_operation_not_permitted: The system does not permit an operation
A system call failed with EPERM. The seccomp filter does this for calls that no extension needs, the packet filter for
packets that are not TCP, and the system for missing rights.
Shape: [Errno 1] Operation not permitted
Cause: A worker, a child or `democrai-sandbox run` created a socket, and its subject declares no network access. Or a
library used a filtered call, such as mounting, tracing or creating namespaces. Or UDP packets were sent to a target
outside of the allowlist.
Fix: For a socket, declare its host and port with `connect`, or the URL with `receive` or `send`; `democrai-sandbox run
module --no-kernel` shows the missing entry. For another call, check in `democrai-sandbox status` whether `seccomp` is
active; if it is, avoid the call: no declaration allows it. For UDP, declare the host and port with `connect`.
Example:
socket.socket()      # in a worker whose manifest declares no network access
-> PermissionError: [Errno 1] Operation not permitted
See: os-enforcement.md

# symptom_bad_system_call: A process was killed by SIGSYS
The seccomp filter kills a process that executes a program, traces another process or modifies the kernel. Its exit
status is -31, or 159 in a shell. No other part of the sandbox kills a process like this.
Shape: died with <Signals.SIGSYS: 31>
Cause: Code in the application started a program directly instead of through the spawn server.
Fix: Start programs with `await sdk.tasks.run_subprocess([...])`. A host that starts programs itself does so before it
confines itself, or disables `sandbox.os.seccomp.enabled`.
Example:
subprocess.run(["git", "--version"], check=True)      # in the host, after confine()
-> subprocess.CalledProcessError: Command '['git', '--version']' died with <Signals.SIGSYS: 31>.
See: os-enforcement.md tasks.md
""",
    is_ours=False,
)
