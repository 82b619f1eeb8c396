"""Update the allowlist: write the policy file, let the helper apply it, and join a burst of changes into one run."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import stat
import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from democrai_sandbox._util.worker_thread import WorkerThread
from democrai_sandbox.errors import HelperFailed, KernelLayerError, PolicyFileRefused

from .helper_client import NOT_RUNNING, TIMED_OUT, readable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from democrai_sandbox.kernel.flow_log import FlowLog

    from .allowlist import Allowlist, AllowlistBuilder, Endpoint, ObservedEndpoints
    from .helper_client import HelperClient
    from .helper_process import HelperConnection

VERSION = 1
LARGEST = 4 * 1024 * 1024
"""Maximum size in bytes that the helper reads."""
_ROOT = 0
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN_OLD = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OPEN_TO_HOLD = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OF_OTHERS = frozenset({errno.EACCES, errno.ELOOP})
"""Errors for a file of another user, which the helper would reject, or a link: replace it without reading it."""
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_UNFINISHED = ".unfinished"
_FORGOTTEN_AFTER = 60.0
"""Seconds after which an unfinished file counts as abandoned; writing takes milliseconds."""


def encoded(endpoints: Iterable[Endpoint]) -> bytes:
    """Return the content of the file, identical for the same endpoints."""
    document = {"version": VERSION, "endpoints": [endpoint.as_dict() for endpoint in endpoints]}
    return json.dumps(document, ensure_ascii=True, separators=(",", ":"), sort_keys=True).encode("ascii")


class PolicyFile:
    """File that is replaced atomically, so that readers see one complete state, also after a power loss.

    The process that wrote it holds a lock until it removes the file or ends. Otherwise two processes with the same file
    would overwrite each other's allowlist.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._folder, self._name = os.path.split(self.path)
        self._held = -1
        """Descriptor of the last written file, which holds the lock."""

    def write(self, content: bytes) -> None:
        """Replace the file; raise if another process uses the same path."""
        if len(content) > LARGEST:
            raise PolicyFileRefused(
                f"the allowlist has {len(content)} bytes; the helper reads at most {LARGEST}",
                fix="declare fewer endpoints, or revoke unneeded approvals",
            )
        with self._opened() as folder:
            try:
                self._replace(folder, content)
            except OSError as error:
                raise PolicyFileRefused(
                    f"the policy file {self.path} could not be written: {error.strerror}",
                    fix=f"free disk space, make {self._folder} writable for this user, or set sandbox.os.policy_file",
                ) from error

    def remove(self) -> None:
        """Remove the file if this process wrote it."""
        held, self._held = self._held, -1
        if held < 0:
            return
        with suppress(OSError):
            if os.path.samestat(os.stat(self.path, follow_symlinks=False), os.fstat(held)):  # noqa: PTH116 - a str path
                Path(self.path).unlink()
        os.close(held)

    def _replace(self, folder: int, content: bytes) -> None:
        self._sweep(folder)
        unfinished = f".{self._name}.{secrets.token_hex(8)}{_UNFINISHED}"
        number = -1
        try:
            _write_new(folder, unfinished, content)
            # Read-only, so that the descriptor cannot be used for writing; a lock against writers needs no more. The
            # lock belongs to this process alone: a fork does not inherit it.
            number = os.open(unfinished, _OPEN_TO_HOLD, dir_fd=folder)
            fcntl.lockf(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
            self._place(folder, unfinished)
            self._held, number = number, self._held
        finally:
            if number >= 0:
                os.close(number)
            with suppress(OSError):
                os.unlink(unfinished, dir_fd=folder)
        os.fsync(folder)

    def _place(self, folder: int, unfinished: str) -> None:
        """Rename the file into place, unless another process has a file of this name."""
        try:
            try:
                with self._claimed(folder):
                    os.rename(unfinished, self._name, src_dir_fd=folder, dst_dir_fd=folder)
            except FileNotFoundError:
                # Unlike a rename, a link never replaces a file that was created meanwhile.
                os.link(unfinished, self._name, src_dir_fd=folder, dst_dir_fd=folder)
        except (BlockingIOError, FileExistsError):
            raise PolicyFileRefused(
                f"another application uses the policy file {self.path}",
                fix="put {pid} into sandbox.os.policy_file, or remove the setting: each application needs its own file",
            ) from None

    @contextmanager
    def _claimed(self, folder: int) -> Iterator[None]:
        """Lock the existing file: it belongs to this process, or to one that has ended."""
        while not self._is_at(folder, self._held):
            try:
                number = os.open(self._name, _OPEN_OLD, dir_fd=folder)
            except OSError as error:
                if error.errno not in _OF_OTHERS:
                    raise
                break
            try:
                fcntl.lockf(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_at(folder, number):  # otherwise it was replaced before the lock
                    yield
                    return
            finally:
                os.close(number)
        yield

    def _is_at(self, folder: int, number: int) -> bool:
        """Whether an open file is the one with the name; raise when the name does not exist."""
        found = os.stat(self._name, dir_fd=folder, follow_symlinks=False)
        return number >= 0 and os.path.samestat(found, os.fstat(number))

    def _sweep(self, folder: int) -> None:
        for name in os.listdir(folder):
            if name.startswith(f".{self._name}.") and name.endswith(_UNFINISHED):
                with suppress(OSError):
                    if time() - os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime > _FORGOTTEN_AFTER:
                        os.unlink(name, dir_fd=folder)

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """Keep the folder open, so that the checked folder is the one that is written to."""
        try:
            Path(self._folder).mkdir(mode=0o700, parents=True, exist_ok=True)
            number = os.open(self._folder, _OPEN_FOLDER)
        except OSError as error:
            raise PolicyFileRefused(
                f"the folder of the policy file {self.path} cannot be used: {error.strerror}",
                fix=f"make {self._folder} a folder owned by this user, or set sandbox.os.policy_file",
            ) from error
        try:
            self._check(os.fstat(number))
            yield number
        finally:
            os.close(number)

    def _check(self, status: os.stat_result) -> None:
        """Reject a folder in which another user could replace the file."""
        if status.st_uid not in (_ROOT, os.geteuid()):
            raise PolicyFileRefused(
                f"the folder {self._folder} of the policy file belongs to user {status.st_uid}",
                fix=f"chown {os.geteuid()} {self._folder}, or set sandbox.os.policy_file",
            )
        if status.st_mode & _OTHERS_WRITE:
            raise PolicyFileRefused(
                f"other users can write to the folder {self._folder} of the policy file "
                f"(mode {stat.S_IMODE(status.st_mode):04o})",
                fix=f"chmod go-w {self._folder}, or set sandbox.os.policy_file to a file in another folder",
            )


def _write_new(folder: int, name: str, content: bytes) -> None:
    number = os.open(name, _OPEN_NEW, 0o600, dir_fd=folder)
    try:
        os.fchmod(number, 0o600)  # independent of the umask and default ACLs
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(number, rest) :]
        os.fsync(number)
    finally:
        os.close(number)


_WITHIN = 15.0
"""Timeout of one update in seconds, which includes resolving names."""


@dataclass(frozen=True, slots=True)
class AppliedAllowlist:
    """Allowlist that the helper has applied."""

    allowlist: Allowlist
    digest: str
    pairs: frozenset[tuple[str, int]]
    """Addresses and ports known to be open."""
    answer: dict[str, Any]
    at: float


class AllowlistUpdater:
    """Update of the allowlist, one at a time. Any thread may read ``applied`` and ``error`` at any time."""

    def __init__(self, builder: AllowlistBuilder, file: PolicyFile, client: HelperClient, flow: FlowLog) -> None:
        self.applied: AppliedAllowlist | None = None
        self.error: KernelLayerError | None = None
        """Error of the last attempt; the previously applied allowlist stays in force."""
        self.failures = 0
        """Number of failed attempts since the start."""
        self._builder = builder
        self._file = file
        self._client = client
        self._flow = flow
        self._one_at_a_time = threading.Lock()

    def write(self) -> None:
        """Write the current allowlist without applying it: the helper reads the file when it starts."""
        with self._one_at_a_time:
            self._file.write(encoded(self._builder.build().endpoints))

    def run(self, reason: str, *, force: bool, pid: int | None = None) -> AppliedAllowlist:
        """Apply the current allowlist; skip an unchanged one unless ``force`` is set."""
        with self._one_at_a_time:
            try:
                self.applied = self._run(reason, force=force, pid=pid)
            except KernelLayerError as error:
                self.error = error
                self.failures += 1
                self._flow("egress.failed", reason=reason, error=str(error))
                raise
            self.error = None
            return self.applied

    def _run(self, reason: str, *, force: bool, pid: int | None) -> AppliedAllowlist:
        allowlist = self._builder.build()
        content = encoded(allowlist.endpoints)
        digest = hashlib.sha256(content).hexdigest()  # by which the helper reports the applied content
        last = self.applied
        if last is not None and last.digest == digest and self.error is None and not force:
            self._flow("egress.unchanged", reason=reason, endpoints=len(allowlist.endpoints))
            return replace(last, allowlist=allowlist)
        self._file.write(content)
        answer = self._client.apply(pid, timeout=_WITHIN)
        if answer.get("digest", digest) != digest:
            raise HelperFailed(
                f"the helper read a different policy from {self._file.path} than this process wrote",
                fix="use a separate policy file per application: put {pid} into sandbox.os.policy_file",
                reason="policy_replaced",
            )
        self._flow(
            "egress.applied",
            reason=reason,
            endpoints=len(allowlist.endpoints),
            addresses=answer.get("addresses"),
            unresolved=answer.get("unresolved"),
            failed_sources=[source.name for source in allowlist.failed_sources],
            chains=answer.get("chains"),
            seconds=answer.get("seconds"),
        )
        return AppliedAllowlist(allowlist, digest, allowlist.pairs(), answer, time())


_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 30.0
_WITHOUT_REFRESH = 3600.0
_SHORTEST_PAUSE = 1.0
_ATTEMPTS = 3
"""Attempts with a killed helper: its successor may be killed as well."""


class EgressFollower:
    """Work of the update thread: run updates, forward the helper's log, and wait for a helper that has ended."""

    def __init__(
        self, updater: AllowlistUpdater, helper: HelperConnection, observed: ObservedEndpoints, seconds: int
    ) -> None:
        self._updater = updater
        self._helper = helper
        self._observed = observed
        self._regular = float(seconds or _WITHOUT_REFRESH)
        self._ended = False

    def work(self, reasons: Iterable[str], *, force: bool) -> None:
        """Apply the current allowlist, with ``force`` even without changes; wait for a helper that has ended."""
        reason = ",".join(reasons)
        force, self._ended = force or self._ended, False
        pid = None
        for _ in range(_ATTEMPTS):
            try:
                self._updater.run(reason, force=force, pid=pid)
            except HelperFailed as error:
                if error.reason != NOT_RUNNING:
                    raise
                self._helper.revive(error)
                force, pid = True, os.getpid()
            else:
                return
        self._updater.run(reason, force=force, pid=pid)

    def watched(self) -> Iterable[int]:
        """Return the descriptors of the helper to wait for."""
        return self._helper.watched()

    def heard(self, ready: Iterable[int]) -> None:
        """Forward the helper's log, and handle its end."""
        self._ended = self._helper.heard(ready) or self._ended

    def pause(self) -> float:
        """Return the time to the next run: zero when the helper has ended, else until the next expiry."""
        if self._ended:
            return 0.0
        expiry = self._observed.next_expiry()
        return self._regular if expiry is None else min(self._regular, max(_SHORTEST_PAUSE, expiry))


class UpdateThread:
    """Thread that runs a follower's work. Callers hold no lock during a run."""

    def __init__(self, follower: EgressFollower) -> None:
        self._follower = follower
        self._changed = threading.Condition()
        self._number = 0
        self._reasons: list[str] = []
        self._force = False
        self._done = 0
        """Number of the latest request that a run has covered, with its error."""
        self._error: KernelLayerError | None = None
        self._failures = 0
        self._ending = False
        self._thread: threading.Thread | None = None
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

    @property
    def is_running(self) -> bool:
        """Whether the thread runs."""
        thread = self._thread
        return thread is not None and thread.is_alive()

    def start(self) -> None:
        """Start the thread; do nothing if it was already started or stopped."""
        with self._changed:
            if self._thread is None and not self._ending:
                self._thread = WorkerThread("egress-refresh", self._run)
                self._thread.start()

    def request(self, reason: str, *, force: bool = False) -> int:
        """Request a run and return immediately, with the number to wait for."""
        self.start()
        with self._changed:
            self._number += 1
            self._force = self._force or force
            if reason not in self._reasons:
                self._reasons.append(reason)
            number = self._number
            if not self._ending:
                os.eventfd_write(self._wake, 1)
        return number

    def settles(self, number: int, timeout: float) -> bool:
        """Return whether a run that started after this request ends in time, with any result."""
        with self._changed:
            return self._changed.wait_for(lambda: self._is_settled(number), timeout)

    def _is_settled(self, number: int) -> bool:
        return self._ending or self._done >= number

    def wait(self, number: int, timeout: float) -> None:
        """Wait for a run that started after this request; raise its error, or on timeout."""
        if threading.current_thread() is self._thread:
            return  # a call from within the run would wait for itself
        with self._changed:
            done = self._changed.wait_for(lambda: self._is_settled(number), timeout)
            ended, error = self._ending and self._done < number, self._error
        if not done or ended:
            what, reason = f"the allowlist was not applied within {timeout:g} s", TIMED_OUT
            if ended:
                what, reason = "updates of the allowlist have stopped", "stopped"
            raise HelperFailed(what, fix="check the status of the egress control for the cause", reason=reason)
        if error is not None:
            # A new object per waiting caller, because a traceback grows with every raise.
            more = {"reason": error.reason} if isinstance(error, HelperFailed) else {}
            raise type(error)(*error.args, fix=error.fix, **more) from error

    def stop(self) -> None:
        """Stop the thread and wait for it; waiting callers get an error."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        with self._changed:
            wake, self._wake = self._wake, -1
        if wake >= 0:
            os.close(wake)

    def _run(self) -> None:
        due = monotonic() + self._follower.pause()
        while not self._ending:
            ready = readable((self._wake, *self._follower.watched()), due - monotonic())
            with suppress(BlockingIOError):
                os.eventfd_read(self._wake)
            self._follower.heard(ready)
            if not self._failures:
                due = min(due, monotonic() + self._follower.pause())
            if self._is_wanted(due):
                self._once()
                backoff = min(_FIRST_PAUSE * 2 ** min(self._failures - 1, 16), _LONGEST_PAUSE)
                due = monotonic() + (backoff if self._failures else self._follower.pause())

    def _is_wanted(self, due: float) -> bool:
        return not self._ending and (bool(self._reasons) or monotonic() >= due)

    def _once(self) -> None:
        with self._changed:
            number, reasons, force = self._number, tuple(self._reasons), self._force
            self._reasons, self._force = [], False
        error = None
        try:
            self._follower.work(reasons or ("time",), force=force or self._failures > 0)
        except KernelLayerError as failure:
            error = failure
        except Exception as failure:  # noqa: BLE001 - without this thread, revocations would not take effect
            error = KernelLayerError(f"{type(failure).__name__}: {failure}", fix="report this as a defect")
        self._failures = self._failures + 1 if error else 0
        with self._changed:
            self._done, self._error = number, error
            self._changed.notify_all()
