"""The egress control of an application: the allowlist is gathered, applied, and follows what is decided."""

from __future__ import annotations

import os
from asyncio import _get_running_loop
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.errors import HelperFailed, HelperOpening, KernelLayerError
from democrai_sandbox.kernel.flow import FlowLog

from .applying import Applying
from .client import NOT_RUNNING, TIMED_OUT, HelperClient
from .holding import HelperHold
from .leftovers import sweep
from .observed import ObservedEndpoints, addresses_of
from .policy_file import PolicyFile, policy_path, socket_path
from .refreshing import Refresher
from .reporting import Facts, egress_status, helper_status
from .sockets import connections, internet_sockets, own_cgroup
from .starting import HelperStarter

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from democrai_sandbox.kernel.settings import OsSettings
    from democrai_sandbox.kernel.states import ControlStatus

    from .allowlist import AllowlistBuilder
    from .interface import ChildCgroup, Endpoint, Observation
    from .refreshing import Wishes

_WITHIN = 5.0
"""Seconds that a subject's first connection waits for the kernel to let it through."""
_WITHIN_ON_LOOP = 0.08
"""Seconds that it waits on the thread of an event loop, which serves others too. The loop then tries again."""
_SILENT_AFTER = 1.0
"""Seconds of such attempts after which the helper is asked, each second, whether it is at work."""
_PING_ON_LOOP = 0.05
_MOST_OPENING = 1000
_SILENT_FOR = 3.0
"""Seconds for which a helper that was silent then is taken for stalled, unless it is found to answer before."""
_STATUS_WITHIN = 2.0
_AGAIN = "try again soon: it is started again by itself; the log and the status say more"
_WITHOUT_REFRESH = 3600.0
_SHORTEST_PAUSE = 1.0
_ATTEMPTS = 3
"""Of a helper that was killed: the next one may be killed just as well."""
_AFTER_RESTART = frozenset({NOT_RUNNING, "bad_request"})
"""What is heard of a helper that is being started again, and of one to which nothing has been given to apply yet."""


class EgressControl:
    """Keeps this process's packets to what the sources name. One per process.

    ``start`` comes before the first thread and the first socket and leaves no thread behind; ``follow`` comes when
    threads may exist. All other methods may be called by any thread; none holds a lock while it waits for the helper.
    """

    def __init__(
        self,
        builder: AllowlistBuilder,
        *,
        settings: OsSettings,
        data_dir: str,
        state_dir: str,
        flow: FlowLog | None = None,
        starter: HelperStarter | None = None,
    ) -> None:
        """Put the parts together; nothing is started or written yet."""
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
        self._hold = HelperHold(self._client, starter or self._own_starter(), self.flow)
        self._applying = Applying(builder, self._file, self._client, self.flow)
        self._following = _Following(self._applying, self._hold, self.observed, settings.refresh_seconds)
        self._refresher = Refresher(self._following)
        self._older: frozenset[int] = frozenset()
        self._failure: KernelLayerError | None = None
        self._stalled_until = 0.0
        self._answered = 0.0
        self._opening: dict[tuple[object, ...], _Opening] = {}
        """What connections of event loops wait for."""
        builder.add(self.observed)

    # ---- beginning and end -------------------------------------------------------------------------------------------

    def start(self, further_pids: Iterable[int] = ()) -> None:
        """Write the allowlist, start the helper, and come under its rules, with further processes.

        Raises what is wrong, and leaves nothing behind then.
        """
        try:
            if removed := sweep(*self._folders):
                self.flow("egress.swept", files=removed)
            self._applying.write()
            self._hold.start()
            self._applying.run("start", force=True, pid=self._pid)
            # Only now: a socket belongs to the cgroup in which it was made, so these are not held to anything.
            self._older = internet_sockets()
            for pid in further_pids:
                self.join(pid)
        except BaseException as error:
            self._failure = error if isinstance(error, KernelLayerError) else None
            self._end()
            raise
        self._failure = None

    def follow(self) -> None:
        """Begin to follow changes, on a thread of its own."""
        if self._is_on():
            self._refresher.start()

    def stop(self) -> None:
        """Take the rules away, end the helper, and leave nothing behind. May be called twice."""
        if os.getpid() == self._pid:  # a fork has nothing to stop, and must not take its parent's rules away
            self._refresher.stop()
            self._end()

    def join(self, pid: int) -> None:
        """Bring a further process of this application under its rules."""
        self._client.join(pid)
        self.flow("egress.joined", pid=pid)

    # ---- following ---------------------------------------------------------------------------------------------------

    def refresh(self, reason: str, *, wait: bool = False, timeout: float = _WITHIN) -> None:
        """Have the allowlist gathered and applied anew; with ``wait``, return when that has been done, or raise."""
        if self._is_on():
            number = self._refresher.wish(reason, force=True)
            if wait:
                self._refresher.wait(number, timeout)

    def changed(self) -> None:
        """Follow a change of decisions, declarations or registries at once. Never waits."""
        if self._is_on():
            self._refresher.wish("changed")

    def observe(self, endpoint: Observation) -> None:
        """Make sure that a connection which the guard has permitted gets through; raises when that cannot be had."""
        if not self._is_on():
            return
        self.observed.observe(endpoint)
        if self._covers(endpoint):
            return
        if _get_running_loop() is None:
            self._refresher.wait(self._wish_for(endpoint), 0.0 if self.stalled else _WITHIN)
        else:
            self._open_on_loop(endpoint)
        if not self._covers(endpoint):
            # What permitted it is not in force any more; the kernel refuses the connection.
            self._tell("egress.not_permitted", endpoint)

    # ---- children ----------------------------------------------------------------------------------------------------

    def child(self, endpoints: Iterable[Endpoint]) -> ChildCgroup:
        """Return a cgroup for one child, whose packets go to these endpoints, as far as this process's may too."""
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
        """Give a child's cgroup back; what is left in it is killed. One that is gone is no error."""
        child.close()
        try:
            self._client.release(child.id)
        except HelperFailed as error:
            self.flow("egress.release_failed", child=child.id, error=str(error))

    # ---- status ------------------------------------------------------------------------------------------------------

    @property
    def stalled(self) -> bool:
        """Whether the helper was found not to answer: what needs it is refused at once until it does."""
        return monotonic() < self._stalled_until

    @stalled.setter
    def stalled(self, value: bool) -> None:
        self._stalled_until = inf if value else 0.0

    @property
    def failures(self) -> int:
        """How often the allowlist could not be applied, since the start."""
        return self._applying.failures

    def ping(self, within: float) -> int:
        """Return the number of the helper's process; raises when it does not answer within some seconds."""
        return self._client.ping(timeout=within)

    def answers(self, within: float) -> bool:
        """Tell whether the helper answers within some seconds."""
        try:
            self.ping(within)
        except HelperFailed:
            return False
        return True

    @property
    def is_kept(self) -> bool:
        """Whether the helper would be started again: by its keeper, or by the program that started it."""
        running = self._hold.running
        return running is not None and running.is_kept

    @property
    def keeper_pid(self) -> int:
        """The number of the keeper's process; 0 when something else keeps the helper."""
        running = self._hold.running
        return 0 if running is None else running.keeper_pid

    def status(self) -> ControlStatus:
        """Measure what is in force now."""
        return egress_status(self._facts())

    def helper_status(self) -> ControlStatus:
        """Ask the helper how it is."""
        return helper_status(self._facts())

    def _facts(self) -> Facts:
        answer: dict[str, Any] = {}
        running, error = self._hold.running, self._failure
        if running is not None:
            try:
                answer = self._client.status(timeout=_STATUS_WITHIN)
                error = None
            except HelperFailed as failure:
                error = failure
        return Facts(
            pid=self._pid,
            refresh_seconds=self._settings.refresh_seconds,
            policy_file=self.policy_file,
            socket=self.socket,
            way=running.way if running is not None else None,
            comes_back=running is not None and running.is_kept,
            helper=answer,
            helper_error=error,
            applied=self._applying.applied,
            apply_error=self._applying.error,
            cgroup=own_cgroup(),
            older_sockets=len(self._older & internet_sockets()),
            observed=len(self.observed),
            following=self._refresher.is_running,
        )

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _own_starter(self) -> HelperStarter:
        return HelperStarter(
            socket_path=self.socket,
            policy_file=self.policy_file,
            refresh_seconds=self._settings.refresh_seconds,
            desktop=self._settings.desktop,
            debug=self.flow.enabled,
        )

    def _is_on(self) -> bool:
        """Whether there is something to follow: it was started, not stopped, and this is not a fork of that process."""
        return self._hold.running is not None and os.getpid() == self._pid

    def _wish_for(self, endpoint: Observation) -> int:
        self._tell("egress.observed", endpoint)
        return self._refresher.wish("observed")

    def _tell(self, event: str, endpoint: Observation) -> None:
        place = {"host": endpoint.host, "port": endpoint.port, "addresses": endpoint.addresses}
        self.flow(event, subject=f"{endpoint.subject_kind}:{endpoint.subject}", **place)

    def _open_on_loop(self, endpoint: Observation) -> None:
        """Return when the way is open; raises ``HelperOpening`` while it is not, for the loop to try again.

        The first attempt waits a moment, unless others wait for the helper already; the next ones do not wait.
        """
        key = (endpoint.subject_kind, endpoint.subject, endpoint.host, endpoint.port)
        opening = self._opening.pop(key, None)
        moment = 0.0 if opening or self._opening or self.stalled else _WITHIN_ON_LOOP
        opening = opening or _Opening(self._wish_for(endpoint), monotonic())
        if self.stalled or self._refresher.settles(opening.number, moment):
            self._refresher.wait(opening.number, 0.0)
            return
        waited = monotonic() - opening.since
        if waited > _WITHIN or (waited > _SILENT_AFTER and not self._is_at_work()):
            self._refresher.wait(opening.number, 0.0)
        if len(self._opening) >= _MOST_OPENING:  # of connections that were given up
            self._opening.clear()
        self._opening[key] = opening
        raise HelperOpening("the way for the connection is not open yet", fix=_AGAIN, reason=TIMED_OUT)

    def _is_at_work(self) -> bool:
        """Tell whether the helper answers; it is asked each second. One that does not is taken for stalled."""
        now = monotonic()
        if now - self._answered < _SILENT_AFTER:
            return True
        if self.answers(_PING_ON_LOOP):
            self._answered = now
            return True
        self._stalled_until = max(self._stalled_until, now + _SILENT_FOR)
        return False

    def _covers(self, endpoint: Observation) -> bool:
        applied = self._applying.applied
        places = addresses_of(endpoint) or (endpoint.host,)
        return applied is not None and all((place, endpoint.port) in applied.pairs for place in places)

    def _end(self) -> None:
        self._hold.stop()
        self._applying.applied = None
        self._file.remove()
        self.flow("egress.ended")


class _Opening(NamedTuple):
    """A wish that a connection of an event loop waits for."""

    number: int
    since: float


class _Following:
    """What the refresher's thread does for the control."""

    def __init__(self, applying: Applying, hold: HelperHold, observed: ObservedEndpoints, seconds: int) -> None:
        self._applying = applying
        self._hold = hold
        self._observed = observed
        self._regular = float(seconds or _WITHOUT_REFRESH)
        self._ended = False

    def work(self, wishes: Wishes) -> None:
        """Bring what is wanted now into force; a helper that is gone is waited for, or started again."""
        reason = ",".join(wishes.reasons)
        force, self._ended = wishes.force or self._ended, False
        pid = None
        for _ in range(_ATTEMPTS):
            try:
                self._applying.run(reason, force=force, pid=pid)
            except HelperFailed as error:
                if error.reason != NOT_RUNNING:
                    raise
                self._hold.revive(error)
                force, pid = True, os.getpid()
            else:
                return
        self._applying.run(reason, force=force, pid=pid)

    def watched(self) -> Iterable[int]:
        """Return what the helper is heard on."""
        return self._hold.watched()

    def heard(self, ready: Iterable[int]) -> None:
        """Hand on the helper's log, and take note of its end."""
        self._ended = self._hold.heard(ready) or self._ended

    def pause(self) -> float:
        """Return the time to the next look: at once when the helper has ended, else when something expires."""
        if self._ended:
            return 0.0
        expiry = self._observed.next_expiry()
        return self._regular if expiry is None else min(self._regular, max(_SHORTEST_PAUSE, expiry))
