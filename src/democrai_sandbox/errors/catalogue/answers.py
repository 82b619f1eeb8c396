"""Codes that only answers contain: decisions, results of tools, and HTTP answers without an exception class."""

from __future__ import annotations

from .entry import Entry, Layer

DECISIONS = (
    Entry(
        code="sandbox_allowlist",
        title="Allowed by a declaration",
        layer=Layer.ACCESS,
        meaning="The access check answered yes. No administrator decided about it.",
        cause="An entry of the manifest of the subject covers the access, or every subject may use it.",
        fix="No action is needed. To forbid the access, remove the entry: a denial does not override a declaration.",
        example="""\
check_external_access(resource_type="filesystem", operation="read", target="/srv/sales/may.csv")
-> allowed=True, code="sandbox_allowlist"      (the manifest declares read on /srv/sales)""",
        see=("approvals.md",),
    ),
    Entry(
        code="session_approval",
        title="Approved for this session",
        layer=Layer.ACCESS,
        meaning="The access check answered yes. The approval ends with the session or when it is revoked.",
        cause="An administrator approved the access for the session of the user. Other sessions are not covered.",
        fix="No action is needed. Revoke the approval to end it earlier.",
        example="""\
$ democrai-sandbox requests approve 01K9A --session
-> the next check of the same user in the same session: allowed=True, code="session_approval\"""",
        see=("approvals.md",),
    ),
    Entry(
        code="permanent_approval",
        title="Approved permanently",
        layer=Layer.ACCESS,
        meaning="The access check answered yes, for all users and sessions of the subject.",
        cause="An administrator approved the access permanently or for a time that is not over.",
        fix="No action is needed. Revoke the approval to end it.",
        example="""\
$ democrai-sandbox requests approve 01K9A --permanent
-> the next check of any user: allowed=True, code="permanent_approval\"""",
        see=("approvals.md",),
    ),
    Entry(
        code="denied",
        title="Denied by an administrator",
        layer=Layer.ACCESS,
        meaning="The access check answered no. Checking again files no request.",
        cause="A recorded denial covers exactly this access or more. The message has the reason, if one was given.",
        fix="Let an administrator revoke the denial with `democrai-sandbox approvals revoke` or in the console.",
        example="""\
$ democrai-sandbox requests deny 01K9A --reason 'use the internal mirror'
-> the next check: allowed=False, code="denied", and the message has the reason""",
        see=("approvals.md",),
    ),
    Entry(
        code="pending",
        title="A request waits for a decision",
        layer=Layer.ACCESS,
        meaning="The access check answered no for now. `request_id` is the id of the pending request.",
        cause="The access is neither declared nor decided, and the check filed a request or found the same one.",
        fix="Wait until an administrator decides. An approval takes effect without a restart.",
        example="""\
check_external_access(resource_type="network", operation="receive", target="https://api.example.com")
-> allowed=False, code="pending", request_id="01K9A\"""",
        see=("approvals.md",),
    ),
    Entry(
        code="not_enabled",
        title="Neither declared nor approved",
        layer=Layer.ACCESS,
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
    Entry(
        code="unknown_tool",
        title="The model called an unknown tool",
        layer=Layer.RUNTIME,
        meaning="The model gets this code as the result of its call, and the run continues.",
        cause="The model invented the name, or the agent does not list the tool.",
        fix="Add the tool to `tools` of the agent, if the agent should have it.",
        example="""\
The model calls get_wether, and the agent has the tool get_weather:
-> {"error": {"code": "unknown_tool", ...}}""",
        see=("ai.md",),
    ),
    Entry(
        code="invalid_arguments",
        title="The model passed invalid arguments to a tool",
        layer=Layer.RUNTIME,
        meaning="The tool did not run. The model gets this code with all problems, and the run continues.",
        cause="The arguments are not valid JSON or do not match the schema of the tool.",
        fix="If it happens often, improve the description and the parameter names of the tool.",
        example="""\
The model calls get_weather with {"city": 7}, and the parameter is a string:
-> {"error": {"code": "invalid_arguments", ...}}""",
        see=("ai.md",),
    ),
    Entry(
        code="invalid_result",
        title="A tool returned a value that is not plain data",
        layer=Layer.RUNTIME,
        meaning="The tool ran. The model gets this code instead of the result, and the run continues.",
        cause="The tool returned a generator, an open file, bytes or an object of a class.",
        fix="Return strings, numbers, lists and dicts, or values that are converted to them, such as dataclasses.",
        example="""\
A tool returns open(path) instead of open(path).read():
-> {"error": {"code": "invalid_result", ...}}""",
        see=("ai.md", "modules.md"),
    ),
    Entry(
        code="tool_failed",
        title="A tool raised an error",
        layer=Layer.RUNTIME,
        meaning="The model gets this code, and the run continues. The log of the host has the traceback.",
        cause="A bug in the tool, or a failure of a service that it uses.",
        fix="Find the traceback in the log of the host, and fix the tool.",
        example="""\
A tool divides by the number of results, and finds none:
-> {"error": {"code": "tool_failed", ...}}""",
        see=("ai.md",),
    ),
    Entry(
        code="tool_timeout",
        title="A tool exceeded its timeout",
        layer=Layer.RUNTIME,
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
    Entry(
        code="host_unknown",
        title="The HTTP request names another host",
        layer=Layer.CONSOLE,
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
    Entry(
        code="origin_refused",
        title="The HTTP request comes from a page of another site",
        layer=Layer.CONSOLE,
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
    Entry(
        code="body_too_large",
        title="The body is too large",
        layer=Layer.CONSOLE,
        meaning="Nothing was done. The status is 413, and the text has the limit.",
        cause="The body exceeds the limit of this address.",
        fix="Send less data per HTTP request.",
        example="""\
POST /api/v1/requests/decide with 10,000 ids
-> 413 {"code": "body_too_large", ...}""",
        see=("api.md",),
    ),
    Entry(
        code="request_timeout",
        title="The body did not arrive in time",
        layer=Layer.CONSOLE,
        meaning="The body did not arrive within a minute. Nothing was done. The status is 408.",
        cause="The connection is slow or broken, or `Content-Length` is larger than the body.",
        fix="Send the HTTP request again, with the right `Content-Length`.",
        example="""\
POST /api/v1/requests/decide, Content-Length: 500, and a body of 400 bytes
-> 408 {"code": "request_timeout", ...}""",
        see=("api.md",),
    ),
    Entry(
        code="bad_request",
        title="The body cannot be read",
        layer=Layer.CONSOLE,
        meaning="Nothing was done. The status is 400.",
        cause="The body is not valid JSON, not UTF-8, or not a form.",
        fix="Correct the body. `/api/v1/openapi.json` describes the body of every address.",
        example="""\
POST /api/v1/requests/decide   {"request_ids": [
-> 400 {"code": "bad_request", "detail": "The body is not JSON: ...", ...}""",
        see=("api.md",),
    ),
    Entry(
        code="not_found",
        title="No page or API call has this address",
        layer=Layer.CONSOLE,
        meaning="The path itself is unknown. A known path with an unknown id has a more specific code.",
        cause="The address is mistyped, or belongs to another version.",
        fix="Use a path from `/api/v1/openapi.json`.",
        example="""\
GET /api/v1/request
-> 404 {"code": "not_found", ...}      (the path is /api/v1/requests)""",
        see=("api.md",),
    ),
    Entry(
        code="method_not_allowed",
        title="The address does not accept this method",
        layer=Layer.CONSOLE,
        meaning="Nothing was done. The status is 405, and the `Allow` header lists the accepted methods.",
        cause="The path is right, but the HTTP method is not.",
        fix="Use a method from the `Allow` header or from `/api/v1/openapi.json`.",
        example="""\
DELETE /api/v1/requests
-> 405 {"code": "method_not_allowed", ...}   Allow: GET""",
        see=("api.md",),
    ),
    Entry(
        code="service_unavailable",
        title="The node stopped before it could answer",
        layer=Layer.CONSOLE,
        meaning="The operation may or may not have completed. The status is 503.",
        cause="The node was stopped or restarted, and the HTTP request ran longer than the ten seconds it waits.",
        fix="Check whether the operation completed; if not, retry here or on another node.",
        example="""\
systemctl restart democrai-sandbox, while a module runs for 30 s
-> 503 {"code": "service_unavailable", ...}""",
        see=("serving.md",),
    ),
    Entry(
        code="internal_error",
        title="Internal error",
        layer=Layer.CONSOLE,
        meaning="An unexpected error. Unfinished changes were not stored. The status is 500.",
        cause="A bug in this package. The log has the traceback.",
        fix="Find the `request_id` of the answer in the log, and report the traceback.",
        example="""\
-> 500 {"code": "internal_error", "request_id": "01K9A", ...}
$ grep 01K9A /var/log/democrai-sandbox.log""",
        see=("monitoring.md",),
    ),
    Entry(
        code="skipped",
        title="One of several requests was left unchanged",
        layer=Layer.CONSOLE,
        meaning="Other requests of the same call were decided; this one stays pending. The text has the reason.",
        cause="Usually an approval for a session, while the request has no session.",
        fix="Decide about this request separately, permanently or for a time.",
        example="""\
POST /api/v1/requests/decide   (approve for the session; one request came from a task without a session)
-> its result has "code": "skipped\"""",
        see=("approvals.md",),
    ),
)
