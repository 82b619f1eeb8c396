"""Egress control of an application: collect the allowlist, apply and update it, and measure its status."""

from __future__ import annotations

import os
import socket
import stat
import sys
from asyncio import _get_running_loop
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from democrai_sandbox.errors import HelperFailed, HelperOpening, KernelLayerError
from democrai_sandbox.kernel.flow_log import FlowLog
from democrai_sandbox.kernel.helper.processes import cgroup_of
from democrai_sandbox.kernel.helper.protocol import RequestRefused
from democrai_sandbox.kernel.settings import policy_path, socket_path
from democrai_sandbox.kernel.status import ControlState, ControlStatus

from .allowlist import Allowlist, EndpointSource, ObservedEndpoints, addresses_of
from .helper_client import NOT_RUNNING, TIMED_OUT, HelperClient
from .helper_process import HelperConnection, HelperStarter, sweep
from .updater import AllowlistUpdater, EgressFollower, PolicyFile, UpdateThread

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from democrai_sandbox.kernel.settings import OsSettings

    from .allowlist import AllowlistBuilder, ChildCgroup, Endpoint, ObservedConnection
    from .helper_process import Way
    from .updater import AppliedAllowlist

_WITHIN = 5.0
"""Seconds that a subject's first connection waits for the packet filter to permit it."""
_WITHIN_ON_LOOP = 0.08
"""Seconds that it waits on the thread of an event loop, which has other work. The loop retries it."""
_SILENT_AFTER = 1.0
"""Seconds of such attempts after which the helper is pinged once per second."""
_PING_ON_LOOP = 0.05
_MOST_OPENING = 1000
_SILENT_FOR = 3.0
"""Seconds for which a helper that did not respond counts as stalled, unless it answers earlier."""
_STATUS_WITHIN = 2.0
_AGAIN = "retry soon: the helper restarts automatically; see the log and the status for details"
_AFTER_RESTART = frozenset({NOT_RUNNING, "bad_request"})
"""Reasons of a helper that is restarting, or has not applied a policy yet."""


class EgressControl:
    """Restrict this process's packets to the endpoints of the sources. Use one per process.

    Call ``start`` before the first thread and the first socket; it leaves no thread running. Call ``follow`` when
    threads may exist. Any thread may call the other methods; none holds a lock while it waits for the helper.
    """

    def __init__(
        self,
        builder: AllowlistBuilder,
        *,
        settings: OsSettings,
        data_dir: str,
        state_dir: str,
        flow: FlowLog | None = None,
    ) -> None:
        self.builder = builder
        self.flow = flow or FlowLog()
        self.observed = ObservedEndpoints(in_use=connections)
        self._pid = os.getpid()
        self.socket = socket_path(settings.helper_socket, state_dir, self._pid)
        self.policy_file = policy_path(settings.policy_file, data_dir, self._pid)
        self._settings = settings
        self._folders = (data_dir, state_dir)
        self._file = PolicyFile(self.policy_file)
        self._client = HelperClient(self.socket)
        starter = HelperStarter(
            socket_path=self.socket,
            policy_file=self.policy_file,
            refresh_seconds=settings.refresh_seconds,
            desktop=settings.desktop,
            debug=self.flow.enabled,
        )
        self._helper = HelperConnection(self._client, starter, self.flow)
        self._updater = AllowlistUpdater(builder, self._file, self._client, self.flow)
        follower = EgressFollower(self._updater, self._helper, self.observed, settings.refresh_seconds)
        self._update_thread = UpdateThread(follower)
        self._older: frozenset[int] = frozenset()
        self._failure: KernelLayerError | None = None
        self._stalled_until = 0.0
        self._answered = 0.0
        self._opening: dict[tuple[object, ...], tuple[int, float]] = {}
        """Endpoints for which connections of event loops wait: the number of the update, and since when."""
        builder.add(EndpointSource("observed", self.observed.endpoints))

    # ---- start and stop ----------------------------------------------------------------------------------------------

    def start(self, further_pids: Iterable[int] = ()) -> None:
        """Write the allowlist, start the helper, and restrict this process and ``further_pids``; clean up on errors."""
        try:
            if removed := sweep(*self._folders):
                self.flow("egress.swept", files=removed)
            self._updater.write()
            self._helper.start()
            self._updater.run("start", force=True, pid=self._pid)
            # Read here: a socket keeps the cgroup in which it was created, so the rules do not apply to these.
            self._older = internet_sockets()
            for pid in further_pids:
                self.join(pid)
        except BaseException as error:
            self._failure = error if isinstance(error, KernelLayerError) else None
            self._end()
            raise
        self._failure = None

    def follow(self) -> None:
        """Start the thread that follows changes."""
        if self._is_on():
            self._update_thread.start()

    def stop(self) -> None:
        """Remove the rules and stop the helper. Safe to call twice."""
        if os.getpid() == self._pid:  # a fork must not remove its parent's rules
            self._update_thread.stop()
            self._end()

    def join(self, pid: int) -> None:
        """Put another process of this application under its rules."""
        self._client.join(pid)
        self.flow("egress.joined", pid=pid)

    # ---- updates -----------------------------------------------------------------------------------------------------

    def refresh(self, reason: str, *, wait: bool = False, timeout: float = _WITHIN) -> None:
        """Rebuild and apply the allowlist; with ``wait``, return when that is done, or raise."""
        if self._is_on():
            number = self._update_thread.request(reason, force=True)
            if wait:
                self._update_thread.wait(number, timeout)

    def changed(self) -> None:
        """Start an update after a change of decisions, declarations or registries. Never waits."""
        if self._is_on():
            self._update_thread.request("changed")

    def observe(self, endpoint: ObservedConnection) -> None:
        """Make sure that the packet filter permits a connection that the guard has permitted; raise otherwise."""
        if not self._is_on():
            return
        self.observed.observe(endpoint)
        if self._covers(endpoint):
            return
        if _get_running_loop() is None:
            self._update_thread.wait(self._request_for(endpoint), 0.0 if self.stalled else _WITHIN)
        else:
            self._open_on_loop(endpoint)
        if not self._covers(endpoint):
            # The permission has ended in the meantime; the kernel refuses the connection.
            self._tell("egress.not_permitted", endpoint)

    # ---- children ----------------------------------------------------------------------------------------------------

    def child(self, endpoints: Iterable[Endpoint]) -> ChildCgroup:
        """Return a cgroup for one child, restricted to these endpoints and to the allowlist of this process."""
        wanted = tuple(endpoints)
        if self.stalled:
            raise HelperFailed("the helper does not answer", fix=_AGAIN, reason=TIMED_OUT)
        try:
            return self._client.child(wanted)
        except HelperFailed as error:
            if error.reason not in _AFTER_RESTART or not self._is_on():
                raise
        self.refresh("child", wait=True)
        return self._client.child(wanted)

    def release(self, child: ChildCgroup) -> None:
        """Release a child's cgroup and kill the processes left in it. Accept one that does not exist any more."""
        child.close()
        try:
            self._client.release(child.id)
        except HelperFailed as error:
            self.flow("egress.release_failed", child=child.id, error=str(error))

    # ---- status ------------------------------------------------------------------------------------------------------

    @property
    def stalled(self) -> bool:
        """Whether the helper did not respond; requests that need it fail immediately until it does."""
        return monotonic() < self._stalled_until

    @stalled.setter
    def stalled(self, value: bool) -> None:
        self._stalled_until = inf if value else 0.0

    @property
    def failures(self) -> int:
        """Number of failed updates of the allowlist since the start."""
        return self._updater.failures

    def ping(self, within: float) -> int:
        """Return the helper's process id; raise when it does not answer within this number of seconds."""
        return self._client.ping(timeout=within)

    def answers(self, within: float) -> bool:
        """Return whether the helper answers within this number of seconds."""
        try:
            self.ping(within)
        except HelperFailed:
            return False
        return True

    @property
    def is_kept(self) -> bool:
        """Whether the helper would be restarted by its keeper or by the program that started it."""
        running = self._helper.running
        return running is not None and running.is_kept

    @property
    def keeper_pid(self) -> int:
        """Process id of the keeper; 0 when another program restarts the helper."""
        running = self._helper.running
        return 0 if running is None else running.keeper_pid

    def status(self) -> ControlStatus:
        """Return the measured state of the allowlist."""
        return egress_status(self._facts())

    def helper_status(self) -> ControlStatus:
        """Return the measured state of the helper."""
        return helper_status(self._facts())

    def _facts(self) -> EgressMeasurements:
        answer: dict[str, Any] = {}
        running, error = self._helper.running, self._failure
        if running is not None:
            try:
                answer = self._client.status(timeout=_STATUS_WITHIN)
                error = None
            except HelperFailed as failure:
                error = failure
        return EgressMeasurements(
            pid=self._pid,
            refresh_seconds=self._settings.refresh_seconds,
            policy_file=self.policy_file,
            socket=self.socket,
            way=running.way if running is not None else None,
            comes_back=running is not None and running.is_kept,
            helper=answer,
            helper_error=error,
            applied=self._updater.applied,
            apply_error=self._updater.error,
            cgroup=own_cgroup(),
            older_sockets=len(self._older & internet_sockets()),
            observed=len(self.observed),
            following=self._update_thread.is_running,
        )

    # ---- internal ----------------------------------------------------------------------------------------------------

    def _is_on(self) -> bool:
        """Whether the control runs in this process: started, not stopped, and not in a fork."""
        return self._helper.running is not None and os.getpid() == self._pid

    def _request_for(self, endpoint: ObservedConnection) -> int:
        self._tell("egress.observed", endpoint)
        return self._update_thread.request("observed")

    def _tell(self, event: str, endpoint: ObservedConnection) -> None:
        place = {"host": endpoint.host, "port": endpoint.port, "addresses": endpoint.addresses}
        self.flow(event, subject=f"{endpoint.subject_kind}:{endpoint.subject}", **place)

    def _open_on_loop(self, endpoint: ObservedConnection) -> None:
        """Return if the packet filter permits the endpoint; otherwise raise ``HelperOpening`` and let the loop retry.

        The first attempt waits briefly, unless other connections already wait for the helper; later ones do not wait.
        """
        key = (endpoint.subject_kind, endpoint.subject, endpoint.host, endpoint.port)
        opening = self._opening.pop(key, None)
        moment = 0.0 if opening or self._opening or self.stalled else _WITHIN_ON_LOOP
        number, since = opening or (self._request_for(endpoint), monotonic())
        if self.stalled or self._update_thread.settles(number, moment):
            self._update_thread.wait(number, 0.0)
            return
        waited = monotonic() - since
        if waited > _WITHIN or (waited > _SILENT_AFTER and not self._is_at_work()):
            self._update_thread.wait(number, 0.0)
        if len(self._opening) >= _MOST_OPENING:  # of connections that were given up
            self._opening.clear()
        self._opening[key] = number, since
        raise HelperOpening("the packet filter does not permit the connection yet", fix=_AGAIN, reason=TIMED_OUT)

    def _is_at_work(self) -> bool:
        """Whether the helper answers, at most one ping per second. A helper that does not answer counts as stalled."""
        now = monotonic()
        if now - self._answered < _SILENT_AFTER:
            return True
        if self.answers(_PING_ON_LOOP):
            self._answered = now
            return True
        self._stalled_until = max(self._stalled_until, now + _SILENT_FOR)
        return False

    def _covers(self, endpoint: ObservedConnection) -> bool:
        applied = self._updater.applied
        places = addresses_of(endpoint) or (endpoint.host,)
        return applied is not None and all((place, endpoint.port) in applied.pairs for place in places)

    def _end(self) -> None:
        self._helper.stop()
        self._updater.applied = None
        self._file.remove()
        self.flow("egress.ended")


_PROC = Path("/proc/self")
_INTERNET = (socket.AF_INET, socket.AF_INET6)
_ESTABLISHED = "01"
_WORD = 8
"""Hexadecimal digits of one 32-bit word of an address."""


def internet_sockets() -> frozenset[int]:
    """Return the inodes of this process's open internet sockets."""
    found = set()
    for entry in list((_PROC / "fd").iterdir()):
        with suppress(OSError):
            number = int(entry.name)
            status = os.fstat(number)
            if stat.S_ISSOCK(status.st_mode) and _family(number) in _INTERNET:
                found.add(status.st_ino)
    return frozenset(found)


def connections() -> frozenset[tuple[str, int]]:
    """Return the remote address and port of each established TCP connection in this network namespace."""
    found: set[tuple[str, int]] = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError, ValueError, IndexError):
            lines = (_PROC / "net" / name).read_text("utf-8").splitlines()[1:]
            found.update(_far_end(fields[2]) for fields in map(str.split, lines) if fields[3] == _ESTABLISHED)
    return frozenset(found)


def own_cgroup() -> str:
    """Return the cgroup v2 path of this process; empty without one."""
    try:
        return cgroup_of(os.getpid())
    except RequestRefused:
        return ""


def _family(number: int) -> int:
    copy = os.dup(number)
    try:
        with socket.socket(fileno=copy) as link:
            copy = -1
            return link.family
    finally:
        if copy >= 0:
            os.close(copy)


def _far_end(text: str) -> tuple[str, int]:
    """Decode the kernel's hexadecimal address, in words of native byte order, and port."""
    digits, _, port = text.partition(":")
    words = (digits[start : start + _WORD] for start in range(0, len(digits), _WORD))
    packed = b"".join(int(word, 16).to_bytes(4, sys.byteorder) for word in words)
    mapped = packed[:12] == b"\0" * 10 + b"\xff\xff"
    if len(packed) == 4 or mapped:  # noqa: PLR2004 - bytes of IPv4
        return socket.inet_ntop(socket.AF_INET, packed[-4:]), int(port, 16)
    return socket.inet_ntop(socket.AF_INET6, packed), int(port, 16)


CGROUP = "democrai_os_sandbox_{pid}"
_MOST_LISTED = 100
_UNSUPPORTED = frozenset({"no_cgroup2", "cgroup_read_only", "no_iptables", "no_ip6tables"})
"""Requirements that the machine lacks, by the helper's reason."""
_HELPER_FIELDS = (
    *("cgroup", "populated", "chains", "families", "sets", "children"),
    *("warnings", "unresolved", "withheld", "last_refresh"),
)
_NOT_APPLIED = "the helper was restarted and has not applied a policy yet"


@dataclass(frozen=True, slots=True)
class EgressMeasurements:
    """Measurements for one status."""

    pid: int
    refresh_seconds: int
    policy_file: str
    socket: str
    way: Way | None
    """Way in which the helper was started; None if it is not running."""
    comes_back: bool
    """Whether a helper that ends is restarted."""
    helper: dict[str, Any]
    helper_error: KernelLayerError | None
    applied: AppliedAllowlist | None
    apply_error: KernelLayerError | None
    cgroup: str
    """Current cgroup of this process."""
    older_sockets: int
    observed: int
    following: bool

    @property
    def is_inside(self) -> bool:
        """Whether this process is in the cgroup of the rules, or below it."""
        return CGROUP.format(pid=self.pid) in self.cgroup.split("/")


_Problem = tuple[str, str]
"""Reason and fix."""


def egress_status(facts: EgressMeasurements) -> ControlStatus:
    """Return the degree to which this process's packets are restricted to the allowlist."""
    state, flaws = _state(facts)
    told = flaws if state is not ControlState.ACTIVE else list(_remarks(facts))
    return ControlStatus(
        "egress",
        state,
        "; ".join(reason for reason, _ in told),
        "; ".join(dict.fromkeys(fix for _, fix in told if fix)),
        _details(facts),
    )


def helper_status(facts: EgressMeasurements) -> ControlStatus:
    """Return whether the helper answers."""
    details = {
        "pid": facts.helper.get("pid"),
        "way": facts.way.value if facts.way is not None else None,
        "socket": facts.socket,
        "refresh_seconds": facts.refresh_seconds,
        "comes_back": facts.comes_back,
    }
    error = facts.helper_error
    if facts.way is None:
        state, problem = _not_started(error, "not started")
        return ControlStatus("helper", state, *problem, details)
    if error is not None:
        return ControlStatus("helper", ControlState.OFF, error.what, error.fix, details)
    return ControlStatus("helper", ControlState.ACTIVE, details=details)


def _state(facts: EgressMeasurements) -> tuple[ControlState, list[_Problem]]:
    if facts.way is None or facts.applied is None:
        state, problem = _not_started(facts.helper_error or facts.apply_error, "not applied")
        return state, [problem]
    if not facts.is_inside:
        place = facts.cgroup or "no cgroup v2"
        what = f"this process is in {place}, not in the cgroup of the rules"
        return ControlState.OFF, [(what, "restart the application, and do not move its processes out of it")]
    flaws = list(_flaws(facts))
    return (ControlState.PARTIAL if flaws else ControlState.ACTIVE), flaws


def _not_started(error: KernelLayerError | None, otherwise: str) -> tuple[ControlState, _Problem]:
    lacking = getattr(error, "reason", "") in _UNSUPPORTED
    problem = (error.what, error.fix) if error else (otherwise, "")
    return (ControlState.UNSUPPORTED if lacking else ControlState.OFF), problem


def _flaws(facts: EgressMeasurements) -> Iterator[_Problem]:
    """Yield the problems: sockets that are not covered, and updates that fail."""
    if facts.older_sockets:
        what = f"{facts.older_sockets} open sockets were created before the cgroup, so the rules do not apply to them"
        yield what, "start the kernel layer before the first socket, or close these sockets"
    if facts.helper_error is not None:
        yield f"the rules cannot be updated: {facts.helper_error.what}", facts.helper_error.fix
    elif facts.helper.get("in_force") is False:
        problems = facts.helper.get("problems")
        named = "; ".join(f"{name}: {text}" for name, text in problems.items()) if isinstance(problems, dict) else ""
        what = f"the rules are not in force ({named or _NOT_APPLIED})"
        yield what, "they are applied again at the next refresh"
    elif facts.apply_error is not None:
        yield f"the last change was not applied: {facts.apply_error.what}", facts.apply_error.fix


def _remarks(facts: EgressMeasurements) -> Iterator[_Problem]:
    """Yield the causes of denials that the user may not expect, while the promised rules hold."""
    failed = facts.applied.allowlist.failed_sources if facts.applied is not None else ()
    if failed:
        names = ", ".join(source.name for source in failed)
        yield f"{names} could not be read, so its endpoints are blocked", "see failed_sources"
    answer = facts.applied.answer if facts.applied is not None else {}
    unresolved = facts.helper.get("unresolved", answer.get("unresolved"))
    if isinstance(unresolved, list) and unresolved:
        what = f"{len(unresolved)} hosts could not be resolved and are blocked"
        yield what, "correct the names, or the DNS configuration of this machine"


def _details(facts: EgressMeasurements) -> dict[str, object]:
    applied = facts.applied
    allowlist, answer = (Allowlist(), {}) if applied is None else (applied.allowlist, applied.answer)
    details: dict[str, object] = {
        "policy_file": facts.policy_file,
        "helper_socket": facts.socket,
        "helper_pid": facts.helper.get("pid"),
        "way": facts.way.value if facts.way is not None else None,
        "in_cgroup": facts.is_inside,
        "own_cgroup": facts.cgroup,
        "older_sockets": facts.older_sockets,
        "refresh_seconds": facts.refresh_seconds,
        "following": facts.following,
        "observed": facts.observed,
        "endpoints": len(allowlist.endpoints),
        "addresses": answer.get("addresses", 0),
        "not_materialised": [item._asdict() for item in allowlist.not_materialised[:_MOST_LISTED]],
        "failed_sources": [source._asdict() for source in allowlist.failed_sources],
        "last_apply": _last_apply(facts),
        "can_leave": os.geteuid() == 0,
    }
    return details | {name: facts.helper.get(name, answer.get(name)) for name in _HELPER_FIELDS}


def _last_apply(facts: EgressMeasurements) -> dict[str, object]:
    applied, error = facts.applied, facts.apply_error
    return {
        "at": datetime.fromtimestamp(applied.at, UTC).isoformat(timespec="seconds") if applied is not None else None,
        "seconds": applied.answer.get("seconds") if applied is not None else None,
        "digest": applied.digest if applied is not None else None,
        "error": str(error) if error is not None else "",
    }
