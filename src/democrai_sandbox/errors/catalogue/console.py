"""People, tokens, and what the console and its API answer."""

from __future__ import annotations

from .entry import Entry, Layer

CONSOLE = (
    Entry(
        code="not_signed_in",
        title="Nobody is signed in",
        layer=Layer.CONSOLE,
        meaning="Nobody is known to send this request. The API answers 401, a page leads to the sign-in.",
        cause=(
            "No session, or one that has ended by itself, was ended from elsewhere or belongs to somebody who "
            "is shut out; a token that is wrong, expired or revoked. A token opens the API and no page, and is "
            "read from the header alone, never from an address."
        ),
        fix="Sign in, or send `Authorization: Bearer dsb_...` with a token that is in force.",
        classes=("NotSignedIn",),
        remark="A `PermissionError`. `location` is where a person signs in.",
    ),
    Entry(
        code="confirmation_needed",
        title="The password has to be given again",
        layer=Layer.CONSOLE,
        meaning=(
            "The person is known, but gave the password longer ago than `console.reauth_minutes`, or than five minutes "
            "for a permanent approval of high risk, and this act holds for longer than a session. Nothing was done."
        ),
        cause="Acts that hold for longer than a session ask for it.",
        fix="Give the password again at `/account/confirm`, and repeat the act. Tokens are not asked.",
        classes=("ConfirmationNeeded",),
        remark="A `PermissionError`. `location` is where the password is given again.",
    ),
    Entry(
        code="scope_missing",
        title="The token is good for other things",
        layer=Layer.CONSOLE,
        meaning="The token is in force, and good for other things than this.",
        fix="Make a token with that scope. A scope gives nothing that the owner of the token may not.",
        classes=("ScopeMissing",),
        remark="A `PermissionError`. `scope` names the one that would do.",
    ),
    Entry(
        code="sign_in_refused",
        title="The name or the password is wrong",
        layer=Layer.CONSOLE,
        meaning=(
            "Name and password do not belong together, or the person is shut out. Which of these it is is "
            "not told, and takes the same time."
        ),
        fix="Type them again; an administrator makes a new password under People.",
        classes=("SignInRefused",),
        remark="A `RuntimeError`.",
    ),
    Entry(
        code="sign_in_throttled",
        title="Too many sign-ins failed",
        layer=Layer.CONSOLE,
        meaning=(
            "Too many sign-ins failed, or too many are being compared at this moment. Nothing was compared: "
            "the right password waits as well."
        ),
        cause=(
            "After five failures of a name from one address each further one waits: 1, 2, 4 seconds and so on "
            "up to 15 minutes. Fifty failures of a name from anywhere, or of an address with any names, are "
            "followed by up to half a minute for each; that does not hold for a name at an address where it "
            "signed in before."
        ),
        fix="Wait for as long as it says. Failures are forgotten after a sign-in, or after a day.",
        classes=("SignInThrottled",),
        remark="A `RuntimeError`. `retry_after` is in seconds.",
    ),
    Entry(
        code="account_unknown",
        title="There is no such person, session or token",
        layer=Layer.CONSOLE,
        meaning="There is no such person, session or token, or it is somebody else's.",
        fix="Look at the list again: it may have ended meanwhile.",
        classes=("AccountUnknown",),
        remark="A `LookupError`.",
    ),
    Entry(
        code="account_conflict",
        title="A change of people or tokens was refused",
        layer=Layer.CONSOLE,
        meaning="A change of people or tokens was refused, and nothing was changed.",
        cause=(
            "The name is taken, also by somebody who is shut out: a name in the audit never becomes somebody "
            "else's. Or nobody would be left who can decide. Or one person has as many tokens as there may be."
        ),
        fix="Take another name, make somebody else an administrator first, or revoke a token.",
        classes=("AccountConflict",),
        remark="A `RuntimeError`.",
    ),
    Entry(
        code="host_unknown",
        title="The request names another host",
        layer=Layer.CONSOLE,
        meaning=(
            "The request names a host that this console does not know as its own. Nothing was done. The status is 421."
        ),
        cause=(
            "People reach the console by another name than the configuration has. Only the two health paths, and "
            "requests with a token to the API and the metrics, may use any name."
        ),
        fix="Set `server.public_url` to the address that people use.",
        see=("configuration.md",),
    ),
    Entry(
        code="origin_refused",
        title="The request comes from a page of another site",
        layer=Layer.CONSOLE,
        meaning="The request was not sent by a page of this site. Nothing was changed.",
        cause=(
            "A page of another site, a proxy that takes the `Origin` header away, or a program that sends a "
            "session cookie without one."
        ),
        fix=(
            "Programs send a token instead of a cookie. Behind a proxy, set `server.public_url` and pass `Host` "
            "and `Origin` on."
        ),
        see=("api.md",),
    ),
    Entry(
        code="body_too_large",
        title="More was sent than is taken",
        layer=Layer.CONSOLE,
        meaning="The body is larger than what is taken at this address. Nothing was done.",
        fix="Send less at a time.",
    ),
    Entry(
        code="request_timeout",
        title="The body did not come in time",
        layer=Layer.CONSOLE,
        meaning="The body that was announced did not arrive within a minute. Nothing was done. The status is 408.",
        cause="A slow or broken connection, or a `Content-Length` that is larger than the body.",
        fix="Send the request again.",
    ),
    Entry(
        code="bad_request",
        title="The body cannot be read",
        layer=Layer.CONSOLE,
        meaning="The body of a request cannot be read. Nothing was done.",
        cause="It is not valid JSON, not UTF-8, or not a form. The status is 400.",
        fix="Correct it; `/api/v1/openapi.json` describes what every address takes.",
    ),
    Entry(
        code="idempotency_conflict",
        title="The idempotency key was used for another request",
        layer=Layer.CONSOLE,
        meaning="The `Idempotency-Key` of the request belongs to another one. Nothing was done. The status is 409.",
        cause=(
            "The same caller has sent the key within the last 24 hours with another path or body. Or the first "
            "request was carried out, and its answer was too large to be kept."
        ),
        fix="Send a new key with each new request, and the same one only to repeat a request as it was.",
        classes=("IdempotencyConflict",),
        remark="A `RuntimeError`.",
        see=("api.md",),
    ),
    Entry(
        code="idempotency_running",
        title="The first request with this idempotency key still runs",
        layer=Layer.CONSOLE,
        meaning="The first request with this `Idempotency-Key` has no answer yet. Nothing was done. The status is 409.",
        cause="The request was sent again before the first one had been answered.",
        fix="Wait for as long as `Retry-After` says, and send it again.",
        classes=("IdempotencyRunning",),
        remark="A `RuntimeError`.",
        see=("api.md",),
    ),
    Entry(
        code="not_found",
        title="There is no such address",
        layer=Layer.CONSOLE,
        meaning="There is nothing at this address.",
        cause="A mistyped address, or one of another version.",
        fix="Take it from `/api/v1/openapi.json`.",
    ),
    Entry(
        code="method_not_allowed",
        title="The address does not take this method",
        layer=Layer.CONSOLE,
        meaning=(
            "There is something at this address, but it does not take this method. The status is 405, and the "
            "`Allow` header lists the methods that it takes."
        ),
        fix="Take the method from `/api/v1/openapi.json`.",
    ),
    Entry(
        code="service_unavailable",
        title="The node ended before the answer was there",
        layer=Layer.CONSOLE,
        meaning="The node was told to end while this request ran, and did not wait for it any longer.",
        cause="It waits ten seconds for requests that run when it is stopped or restarted.",
        fix="Look whether what was asked for has been done, and ask again otherwise: another node, or this one later.",
    ),
    Entry(
        code="internal_error",
        title="A fault of this program",
        layer=Layer.CONSOLE,
        meaning="Something went wrong that nobody foresaw. What was not finished was not stored.",
        cause="A fault of this program.",
        fix="Look for the `request_id` of the answer in the log, and report what stands there.",
    ),
    Entry(
        code="skipped",
        title="One of several was left as it is",
        layer=Layer.CONSOLE,
        meaning="When several requests were decided at once, this one was left as it is; the text says why.",
        cause="Often an approval for the session of a request that has no session.",
        fix="Decide about it by itself.",
    ),
)
