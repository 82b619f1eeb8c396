"""One fetch over all its redirects: each hop is authorized separately and made in a guard for its own URL only."""

from __future__ import annotations

import re
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.errors import ExternalAccessCheckFailed
from democrai_sandbox.errors.services import MediaClosed, MediaRedirectRefused, MediaTooLarge
from democrai_sandbox.guard.contexts import make_guard
from democrai_sandbox.kernel import flow_log
from democrai_sandbox.policy import AccessDecision, DecisionCode, NetworkIndex, Operation, ResourceType, SandboxError
from democrai_sandbox.runtime.access_environment import network_denial, network_question

from .http_request import Bounds, Hop, MediaExchange, describing, follow
from .values import Asker, MediaHead, MediaLimits, rules_of

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from democrai_sandbox.access.checks import AccessService
    from democrai_sandbox.guard import AccessQuestion, Guard
    from democrai_sandbox.runtime.extensions.shadow_runs import ShadowRuns

SWITCH = "DEMOCRAI_DEBUG_MEDIA_FLOW"
_QUERY = re.compile(r"[?#].*", re.DOTALL)


class MediaFlowLog(flow_log.FlowLog):
    """Prints the flow if enabled. Session keys and query strings, which may contain tokens, are masked."""

    switch = SWITCH
    label = "[MEDIA_FLOW]"

    def shown(self, name: str, value: object) -> object:
        """Return a detail in printable form."""
        shown = super().shown(name, value)
        return _QUERY.sub("?***", value) if shown is value and isinstance(value, str) else shown


class MediaAuthority:
    """Authorizes each hop separately."""

    def __init__(self, judge: AccessService, log: MediaFlowLog, shadows: ShadowRuns | None = None) -> None:
        """Ask this service about URLs that the rules of a subject do not cover.

        ``shadows`` records where the candidate of a subject would decide differently.
        """
        self._judge = judge
        self._shadows = shadows
        self._log = log

    def authorise(self, asker: Asker, hop: Hop) -> DecisionCode:
        """Return the reason that allows this URL, or raise the same denial as for a request of the subject itself."""
        if self._is_declared(asker, hop):
            code = DecisionCode.SANDBOX_ALLOWLIST
        else:
            target = hop.target
            # Ambiguous paths differ only in their spelling.
            place = (Operation.RECEIVE, hop.url if target.ambiguous else target.normalized)
            who = (asker.user_id, asker.organization_id, asker.session_key)
            question = network_question(asker.subject, asker.chain, place, who, register=True)
            decision = self._decide(question)
            if not decision.allowed:
                self._log("locked", subject=str(asker.subject), url=hop.url, code=str(decision.code))
                raise network_denial(question, decision, target.normalized)
            code = decision.code
        self._log("allowed", subject=str(asker.subject), session=asker.session_key, url=hop.url, code=str(code))
        return code

    def _is_declared(self, asker: Asker, hop: Hop) -> bool:
        if self._shadows is None or asker.view is None:
            return NetworkIndex(asker.rules).allows(Operation.RECEIVE, hop.target)
        wish = (ResourceType.NETWORK.value, Operation.RECEIVE.value, hop.target.normalized)
        return self._shadows.compare(
            asker.view, wish, lambda view: NetworkIndex(rules_of(view)).allows(Operation.RECEIVE, hop.target)
        )

    def _decide(self, question: AccessQuestion) -> AccessDecision:
        try:
            return self._judge.decide(question)
        except SandboxError:
            raise
        except Exception as error:
            # As in the guard: an error in a check is a failure, not a denial, and allows nothing.
            raise ExternalAccessCheckFailed(str(error)) from error


def scoped_guard(asker: Asker, hop: Hop) -> Guard:
    """Return the guard for one hop: this subject and this URL, without other network access."""
    rule = {"resource_type": "network", "operation": "receive", "target": hop.scope}
    return make_guard(
        subject=asker.subject.name,
        subject_kind=asker.subject.kind.value,
        access=[rule],
        user_id=asker.user_id,
        organization_id=asker.organization_id,
        session_key=asker.session_key,
        network_only=True,
    )


_NOT_MODIFIED = 304
_REDIRECTS = frozenset({301, 302, 303, 307, 308})


class FetchParts(NamedTuple):
    """Objects that all flows share."""

    authority: MediaAuthority
    limits: MediaLimits
    tls: ssl.SSLContext
    log: MediaFlowLog


class FetchOptions(NamedTuple):
    """Description of a fetch."""

    hop: Hop
    method: str
    headers: Mapping[str, str]
    most_bytes: int
    seconds: float


class Fetch:
    """Fetches in blocking steps: ``open``, then ``read`` until it returns nothing. ``abort`` is thread-safe."""

    def __init__(self, parts: FetchParts, asker: Asker, wish: FetchOptions) -> None:
        """Describe the fetch; its time runs from ``open`` on."""
        self._parts, self._asker, self._wish = parts, asker, wish
        self._exchange: MediaExchange | None = None
        self._guard: Guard | None = None
        self._aborted = False
        self._received = 0
        self.hops: list[str] = []
        """Requested URLs in order."""

    def open(self, extra: Mapping[str, str]) -> MediaHead:
        """Send the HTTP request, follow redirects, and return the head of the response.

        The runtime adds ``extra`` headers.
        """
        limits = self._parts.limits
        deadline = monotonic() + self._wish.seconds
        bounds = Bounds(deadline, limits.idle_seconds, limits.connect_seconds, limits.header_bytes)
        headers = {**self._wish.headers, **extra}
        hop, session_only = self._wish.hop, False
        while True:
            code = self._parts.authority.authorise(self._asker, hop)
            session_only = session_only or code is DecisionCode.SESSION_APPROVAL
            status, answered = self._ask(hop, headers, bounds)
            location = next((value for name, value in answered if name.lower() == "location"), None)
            if status not in _REDIRECTS or location is None:
                return self._begun(MediaHead(status, describing(answered), hop.url, session_only))
            self._close_exchange()
            hop = self._next(follow(hop, location))

    def read(self) -> bytes:
        """Return the next part of the body; empty at its end."""
        if self._exchange is None or self._guard is None or self._aborted:
            raise MediaClosed("the fetch was canceled")
        data = self._guard.run(self._exchange.read, self._parts.limits.chunk_bytes)
        self._received += len(data)
        if self._received > self._wish.most_bytes:
            self._too_large()
        return data

    def abort(self) -> None:
        """Stop immediately, even while waiting."""
        self._aborted = True
        if self._exchange is not None:
            self._exchange.abort()

    def close(self) -> None:
        """Release everything."""
        self._aborted = True
        self._close_exchange()

    def _close_exchange(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.close()

    def _ask(self, hop: Hop, headers: Mapping[str, str], bounds: Bounds) -> tuple[int, list[tuple[str, str]]]:
        self.hops.append(hop.url)
        exchange = MediaExchange(hop, self._wish.method, headers, bounds, self._parts.tls)
        self._exchange, self._guard = exchange, scoped_guard(self._asker, hop)
        if self._aborted:  # checked after the exchange is visible to abort()
            raise MediaClosed("the fetch was canceled")
        status, answered = self._guard.run(exchange.begin)
        self._parts.log("answer", subject=str(self._asker.subject), url=hop.url, status=status)
        return status, answered

    def _begun(self, head: MediaHead) -> MediaHead:
        """Set the header to the enforced length of the body. A different header would mislead recipients."""
        length = self._exchange.length if self._exchange else None
        if length is not None and length > self._wish.most_bytes:
            self._too_large()
        if self._wish.method != "HEAD":
            head.headers.pop("content-length", None)
            if length is not None and head.status != _NOT_MODIFIED:
                head.headers["content-length"] = str(length)
        return head

    def _next(self, hop: Hop) -> Hop:
        if hop.url in self.hops:
            raise MediaRedirectRefused("the redirects form a loop")
        if len(self.hops) > self._parts.limits.redirects:
            raise MediaRedirectRefused(f"more than {self._parts.limits.redirects} redirects")
        self._parts.log("redirect", subject=str(self._asker.subject), url=hop.url)
        return hop

    def _too_large(self) -> None:
        self.close()
        raise MediaTooLarge(f"the body is larger than {self._wish.most_bytes} bytes")
