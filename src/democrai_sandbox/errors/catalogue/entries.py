"""Entries of the catalog: made from the error classes, and written here for codes and symptoms without a class."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from inspect import cleandoc
from typing import TYPE_CHECKING

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


def entry_of_class(kind: type[SandboxError], layer: ErrorLayer, others: Collection[str] = ()) -> ErrorEntry:
    """Return the entry of an error class: its docstring is the title and the meaning.

    ``others`` are subclasses with the same code. Under ``python -OO``, which removes docstrings, the code is the title.
    """
    title, _, rest = cleandoc(kind.__doc__ or kind.code).replace("``", "`").partition("\n")
    guidance = kind.guidance
    return ErrorEntry(
        code=kind.code,
        title=title.removesuffix("."),
        layer=layer,
        shape=guidance.shape,
        meaning=" ".join(rest.split()),
        cause=guidance.cause,
        fix=guidance.fix,
        example=guidance.example,
        classes=(kind.__name__, *others),
        bases=tuple(base.__name__ for base in kind.__bases__ if base.__name__ not in {"SandboxError", "Exception"}),
        words=guidance.words,
        see=guidance.see,
    )


DECISIONS = (
    ErrorEntry(
        code="sandbox_allowlist",
        title="Allowed by a declaration",
        layer=ErrorLayer.ACCESS,
        meaning="The access check answered yes. No administrator decided about it.",
        cause="An entry of the manifest of the subject covers the access, or every subject may use it.",
        fix="No action is needed. To forbid the access, remove the entry: a denial does not override a declaration.",
        example="""\
check_external_access(resource_type="filesystem", operation="read", target="/srv/sales/may.csv")
-> allowed=True, code="sandbox_allowlist"      (the manifest declares read on /srv/sales)""",
        see=("approvals.md",),
    ),
    ErrorEntry(
        code="session_approval",
        title="Approved for this session",
        layer=ErrorLayer.ACCESS,
        meaning="The access check answered yes. The approval ends with the session or when it is revoked.",
        cause="An administrator approved the access for the session of the user. Other sessions are not covered.",
        fix="No action is needed. Revoke the approval to end it earlier.",
        example="""\
$ democrai-sandbox requests approve 01K9A --session
-> the next check of the same user in the same session: allowed=True, code="session_approval\"""",
        see=("approvals.md",),
    ),
    ErrorEntry(
        code="permanent_approval",
        title="Approved permanently",
        layer=ErrorLayer.ACCESS,
        meaning="The access check answered yes, for all users and sessions of the subject.",
        cause="An administrator approved the access permanently or for a time that is not over.",
        fix="No action is needed. Revoke the approval to end it.",
        example="""\
$ democrai-sandbox requests approve 01K9A --permanent
-> the next check of any user: allowed=True, code="permanent_approval\"""",
        see=("approvals.md",),
    ),
    ErrorEntry(
        code="denied",
        title="Denied by an administrator",
        layer=ErrorLayer.ACCESS,
        meaning="The access check answered no. Checking again files no request.",
        cause="A recorded denial covers exactly this access or more. The message has the reason, if one was given.",
        fix="Let an administrator revoke the denial with `democrai-sandbox approvals revoke` or in the console.",
        example="""\
$ democrai-sandbox requests deny 01K9A --reason 'use the internal mirror'
-> the next check: allowed=False, code="denied", and the message has the reason""",
        see=("approvals.md",),
    ),
    ErrorEntry(
        code="pending",
        title="A request waits for a decision",
        layer=ErrorLayer.ACCESS,
        meaning="The access check answered no for now. `request_id` is the id of the pending request.",
        cause="The access is neither declared nor decided, and the check filed a request or found the same one.",
        fix="Wait until an administrator decides. An approval takes effect without a restart.",
        example="""\
check_external_access(resource_type="network", operation="receive", target="https://api.example.com")
-> allowed=False, code="pending", request_id="01K9A\"""",
        see=("approvals.md",),
    ),
    ErrorEntry(
        code="not_enabled",
        title="Neither declared nor approved",
        layer=ErrorLayer.ACCESS,
        meaning="The access check answered no, and no request was filed.",
        cause=(
            "The check used `register_request=False`, the subject has the maximum number of pending requests, or the "
            "access cannot be approved."
        ),
        fix="Declare the access, or check with `register_request=True`.",
        example="""\
check_external_access(..., target="https://api.example.com", register_request=False)
-> allowed=False, code="not_enabled", message="External URL is locked.\"""",
        see=("approvals.md",),
    ),
)

TOOLS = (
    ErrorEntry(
        code="unknown_tool",
        title="The model called an unknown tool",
        layer=ErrorLayer.RUNTIME,
        meaning="The model gets this code as the result of its call, and the run continues.",
        cause="The model invented the name, or the agent does not list the tool.",
        fix="Add the tool to `tools` of the agent, if the agent should have it.",
        example="""\
The model calls get_wether, and the agent has the tool get_weather:
-> {"error": {"code": "unknown_tool", ...}}""",
        see=("ai.md",),
    ),
    ErrorEntry(
        code="invalid_arguments",
        title="The model passed invalid arguments to a tool",
        layer=ErrorLayer.RUNTIME,
        meaning="The tool did not run. The model gets this code with all problems, and the run continues.",
        cause="The arguments are not valid JSON or do not match the schema of the tool.",
        fix="If it happens often, improve the description and the parameter names of the tool.",
        example="""\
The model calls get_weather with {"city": 7}, and the parameter is a string:
-> {"error": {"code": "invalid_arguments", ...}}""",
        see=("ai.md",),
    ),
    ErrorEntry(
        code="invalid_result",
        title="A tool returned a value that is not plain data",
        layer=ErrorLayer.RUNTIME,
        meaning="The tool ran. The model gets this code instead of the result, and the run continues.",
        cause="The tool returned a generator, an open file, bytes or an object of a class.",
        fix="Return strings, numbers, lists and dicts, or values that are converted to them, such as dataclasses.",
        example="""\
A tool returns open(path) instead of open(path).read():
-> {"error": {"code": "invalid_result", ...}}""",
        see=("ai.md", "modules.md"),
    ),
    ErrorEntry(
        code="tool_failed",
        title="A tool raised an error",
        layer=ErrorLayer.RUNTIME,
        meaning="The model gets this code, and the run continues. The log of the host has the traceback.",
        cause="A bug in the tool, or a failure of a service that it uses.",
        fix="Find the traceback in the log of the host, and fix the tool.",
        example="""\
A tool divides by the number of results, and finds none:
-> {"error": {"code": "tool_failed", ...}}""",
        see=("ai.md",),
    ),
    ErrorEntry(
        code="tool_timeout",
        title="A tool exceeded its timeout",
        layer=ErrorLayer.RUNTIME,
        meaning="The call was canceled. The model gets this code, and the run continues.",
        cause="The tool took longer than `tool_timeout` of the agent.",
        fix="Raise `tool_timeout` of the agent, if the host allows it, or let the tool do less per call.",
        example="""\
tool_timeout is 10, and the tool downloads a file for 30 s:
-> {"error": {"code": "tool_timeout", ...}}""",
        see=("ai.md",),
    ),
)

ANSWERS = (
    ErrorEntry(
        code="host_unknown",
        title="The HTTP request names another host",
        layer=ErrorLayer.CONSOLE,
        meaning="Nothing was done. The status is 421.",
        cause=(
            "The `Host` header is not a name of this console. Only the health paths, and requests with a token to the "
            "API and the metrics, may use any name."
        ),
        fix="Set `server.public_url` to the address that users open.",
        example="""\
server.public_url is https://sandbox.example.com, and a user opens https://10.0.0.5/
-> 421 host_unknown""",
        see=("configuration.md",),
    ),
    ErrorEntry(
        code="origin_refused",
        title="The HTTP request comes from a page of another site",
        layer=ErrorLayer.CONSOLE,
        meaning="Nothing was changed. The check protects users from cross-site request forgery.",
        cause=(
            "A page of another site sent it, a proxy removed the `Origin` header, or a program sent a session cookie "
            "without that header."
        ),
        fix=(
            "Let programs send a token instead of a cookie. Behind a proxy, set `server.public_url` and forward `Host` "
            "and `Origin`."
        ),
        example="""\
curl -X POST --cookie 'session=...' https://sandbox.example.com/requests/decide
-> 403 origin_refused""",
        see=("api.md",),
    ),
    ErrorEntry(
        code="body_too_large",
        title="The body is too large",
        layer=ErrorLayer.CONSOLE,
        meaning="Nothing was done. The status is 413, and the text has the limit.",
        cause="The body exceeds the limit of this address.",
        fix="Send less data per HTTP request.",
        example="""\
POST /api/v1/requests/decide with 10,000 ids
-> 413 {"code": "body_too_large", ...}""",
        see=("api.md",),
    ),
    ErrorEntry(
        code="request_timeout",
        title="The body did not arrive in time",
        layer=ErrorLayer.CONSOLE,
        meaning="The body did not arrive within a minute. Nothing was done. The status is 408.",
        cause="The connection is slow or broken, or `Content-Length` is larger than the body.",
        fix="Send the HTTP request again, with the right `Content-Length`.",
        example="""\
POST /api/v1/requests/decide, Content-Length: 500, and a body of 400 bytes
-> 408 {"code": "request_timeout", ...}""",
        see=("api.md",),
    ),
    ErrorEntry(
        code="bad_request",
        title="The body cannot be read",
        layer=ErrorLayer.CONSOLE,
        meaning="Nothing was done. The status is 400.",
        cause="The body is not valid JSON, not UTF-8, or not a form.",
        fix="Correct the body. `/api/v1/openapi.json` describes the body of every address.",
        example="""\
POST /api/v1/requests/decide   {"request_ids": [
-> 400 {"code": "bad_request", "detail": "The body is not JSON: ...", ...}""",
        see=("api.md",),
    ),
    ErrorEntry(
        code="not_found",
        title="No page or API call has this address",
        layer=ErrorLayer.CONSOLE,
        meaning="The path itself is unknown. A known path with an unknown id has a more specific code.",
        cause="The address is mistyped, or belongs to another version.",
        fix="Use a path from `/api/v1/openapi.json`.",
        example="""\
GET /api/v1/request
-> 404 {"code": "not_found", ...}      (the path is /api/v1/requests)""",
        see=("api.md",),
    ),
    ErrorEntry(
        code="method_not_allowed",
        title="The address does not accept this method",
        layer=ErrorLayer.CONSOLE,
        meaning="Nothing was done. The status is 405, and the `Allow` header lists the accepted methods.",
        cause="The path is right, but the HTTP method is not.",
        fix="Use a method from the `Allow` header or from `/api/v1/openapi.json`.",
        example="""\
DELETE /api/v1/requests
-> 405 {"code": "method_not_allowed", ...}   Allow: GET""",
        see=("api.md",),
    ),
    ErrorEntry(
        code="service_unavailable",
        title="The node stopped before it could answer",
        layer=ErrorLayer.CONSOLE,
        meaning="The operation may or may not have completed. The status is 503.",
        cause="The node was stopped or restarted, and the HTTP request ran longer than the ten seconds it waits.",
        fix="Check whether the operation completed; if not, retry here or on another node.",
        example="""\
systemctl restart democrai-sandbox, while a module runs for 30 s
-> 503 {"code": "service_unavailable", ...}""",
        see=("serving.md",),
    ),
    ErrorEntry(
        code="internal_error",
        title="Internal error",
        layer=ErrorLayer.CONSOLE,
        meaning="An unexpected error. Unfinished changes were not stored. The status is 500.",
        cause="A bug in this package. The log has the traceback.",
        fix="Find the `request_id` of the answer in the log, and report the traceback.",
        example="""\
-> 500 {"code": "internal_error", "request_id": "01K9A", ...}
$ grep 01K9A /var/log/democrai-sandbox.log""",
        see=("monitoring.md",),
    ),
    ErrorEntry(
        code="skipped",
        title="One of several requests was left unchanged",
        layer=ErrorLayer.CONSOLE,
        meaning="Other requests of the same call were decided; this one stays pending. The text has the reason.",
        cause="Usually an approval for a session, while the request has no session.",
        fix="Decide about this request separately, permanently or for a time.",
        example="""\
POST /api/v1/requests/decide   (approve for the session; one request came from a task without a session)
-> its result has "code": "skipped\"""",
        see=("approvals.md",),
    ),
)


SYMPTOMS = (
    ErrorEntry(
        code="symptom_connection_refused",
        title="A connection is refused or reset",
        layer=ErrorLayer.KERNEL,
        shape="[Errno 111] Connection refused",
        meaning=(
            "The packet filter resets a TCP connection to a target outside of the egress allowlist. A server that "
            "does not listen looks the same from inside a program."
        ),
        cause=(
            "If the guard allows the target, one of these: the host did not resolve, or resolves to addresses that the "
            "packet filter does not know; another port is declared or approved; the helper does not run or is not "
            "reachable at `sandbox.os.helper_socket`; the policy file at `sandbox.os.policy_file` is missing, belongs "
            "to another user, or is writable by its group or by all; the process is not in the cgroup of the helper; "
            "two instances share a policy file or a helper socket; or the decision was made on another node and "
            "`network.stream.type` does not reach this one."
        ),
        fix=(
            "Read the lines `egress` and `helper` of `democrai-sandbox status`: they show the rules in force, the "
            "hosts that did not resolve, and the last update. Run `democrai-sandbox explain` with subject, operation "
            "and target: it reports a disagreement between guard and packet filter. Enable `sandbox.os.enabled` only "
            "to filter the egress of the whole process. Give each instance a separate `sandbox.os.policy_file` and "
            "`sandbox.os.helper_socket`, or set neither: the defaults never collide. With several nodes, use a stream "
            "that reaches all of them. `DEMOCRAI_DEBUG_OS_SANDBOX_FLOW=1` logs every step of the allowlist, "
            "`DEMOCRAI_DEBUG_MEDIA_FLOW=1` those of media and of external access."
        ),
        example="""\
socket.create_connection(("api.example.com", 8443))      # only port 443 is approved
-> ConnectionRefusedError: [Errno 111] Connection refused""",
        see=("os-enforcement.md",),
        is_ours=False,
    ),
    ErrorEntry(
        code="symptom_permission_denied",
        title="The system denies access to a file, without a code",
        layer=ErrorLayer.KERNEL,
        shape="[Errno 13] Permission denied",
        meaning=(
            "A denial of the guard always has a code. Without one, the system refused: the owner and mode of the file, "
            "or Landlock, which restricts the application and its children to their paths."
        ),
        cause=(
            "The path was not in the lists of Landlock when the process started. In a worker, a child or "
            "`democrai-sandbox run`, the declared path did not exist at that time: Landlock allows only existing "
            "paths, so a file that the process creates later cannot be declared by itself."
        ),
        fix=(
            "Run `democrai-sandbox explain` with subject, operation and target: it says whether Landlock blocks a path "
            "that the guard allows. Then add the path to `sandbox.os.landlock.extra_read_paths` or `extra_write_paths` "
            "and restart. For a new file of a worker or child, declare its parent folder, which must exist. Otherwise "
            "check the owner and mode of the file."
        ),
        example="""\
open("/srv/out/new.csv", "w")      # in a worker; /srv/out/new.csv is declared and does not exist yet
-> PermissionError: [Errno 13] Permission denied: '/srv/out/new.csv'""",
        see=("os-enforcement.md",),
        is_ours=False,
    ),
    ErrorEntry(
        code="symptom_operation_not_permitted",
        title="The system does not permit an operation",
        layer=ErrorLayer.KERNEL,
        shape="[Errno 1] Operation not permitted",
        meaning=(
            "A system call failed with EPERM. The seccomp filter does this for calls that no extension needs, the "
            "packet filter for packets that are not TCP, and the system for missing rights."
        ),
        cause=(
            "A worker, a child or `democrai-sandbox run` created a socket, and its subject declares no network access. "
            "Or a library used a filtered call, such as mounting, tracing or creating namespaces. Or UDP packets were "
            "sent to a target outside of the allowlist."
        ),
        fix=(
            "For a socket, declare its host and port with `connect`, or the URL with `receive` or `send`; "
            "`democrai-sandbox run module --no-kernel` shows the missing entry. For another call, check in "
            "`democrai-sandbox status` whether `seccomp` is active; if it is, avoid the call: no declaration allows "
            "it. For UDP, declare the host and port with `connect`."
        ),
        example="""\
socket.socket()      # in a worker whose manifest declares no network access
-> PermissionError: [Errno 1] Operation not permitted""",
        see=("os-enforcement.md",),
        is_ours=False,
    ),
    ErrorEntry(
        code="symptom_bad_system_call",
        title="A process was killed by SIGSYS",
        layer=ErrorLayer.KERNEL,
        shape="died with <Signals.SIGSYS: 31>",
        meaning=(
            "The seccomp filter kills a process that executes a program, traces another process or modifies the "
            "kernel. Its exit status is -31, or 159 in a shell. No other part of the sandbox kills a process like this."
        ),
        cause="Code in the application started a program directly instead of through the spawn server.",
        fix=(
            "Start programs with `await sdk.tasks.run_subprocess([...])`. A host that starts programs itself does so "
            "before it confines itself, or disables `sandbox.os.seccomp.enabled`."
        ),
        example="""\
subprocess.run(["git", "--version"], check=True)      # in the host, after confine()
-> subprocess.CalledProcessError: Command '['git', '--version']' died with <Signals.SIGSYS: 31>.""",
        see=("os-enforcement.md", "tasks.md"),
        is_ours=False,
    ),
)
