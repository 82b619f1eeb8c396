"""Sandbox object: an application creates it from a configuration, starts it, and stops it."""

from __future__ import annotations

import asyncio
import threading
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Self

from democrai_sandbox import errors
from democrai_sandbox.access import Access, AccessSettings, Caller
from democrai_sandbox.access.keyring import KeyRing, make_key_file
from democrai_sandbox.access.node import utc_now
from democrai_sandbox.access.resumptions import ResumeSettings
from democrai_sandbox.access.store.database_location import parse_url, shown_url
from democrai_sandbox.kernel.application import Kernel
from democrai_sandbox.kernel.egress.allowlist import AllowlistBuilder
from democrai_sandbox.runtime import Runtime
from democrai_sandbox.runtime.access_environment import GuardSurroundings
from democrai_sandbox.runtime.confinement.allowlist_sources import config_source
from democrai_sandbox.runtime.extensions.registry import discover
from democrai_sandbox.runtime.worker.process import template_command

from . import directories
from .accounts.accounts import Accounts
from .accounts.idempotency import IdempotencyKeys
from .authentication import Identity
from .config import load
from .directories import DatabaseLock, unreachable_error, unreachable_reason
from .extension_admin import BackgroundInstaller, StoredModels, check_configured, open_models
from .host_only import inside
from .observations import Observations, ReasonFinder
from .run_modes import record_modes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from os import PathLike

    from democrai_sandbox.access.values import Requester
    from democrai_sandbox.runtime.ai.model import Model

    from .authentication import Authenticator, RoleLookup, Roles
    from .settings import HostSettings

_LEASE = timedelta(minutes=5)
_AGES = timedelta(days=36525)
_made = threading.Event()
"""Set after a sandbox exists: the guard is configured once per process."""


class Sandbox:
    """Sandbox in an application. Create one per process, before its first thread and its first socket.

    ``async with`` starts and stops it on the application's event loop. Only the host can read its parts: a module in
    the same process that obtains the object cannot.
    """

    settings: HostSettings = inside("sandbox")
    access: Access = inside("sandbox")
    runtime: Runtime = inside("sandbox")
    kernel: Kernel = inside("sandbox")
    accounts: Accounts | None = inside("sandbox")
    idempotency: IdempotencyKeys = inside("sandbox")
    authenticator: Authenticator = inside("sandbox")
    roles: RoleLookup = inside("sandbox")
    observations: Observations = inside("sandbox")
    models: StoredModels = inside("sandbox")
    """Models that administrators add while the sandbox runs."""
    installing: BackgroundInstaller = inside("sandbox")
    """Background installations of engines and extractors."""
    closing: asyncio.Event = inside("sandbox")
    """Set when the sandbox is about to stop, so that open event streams end."""
    _ownership: DatabaseLock = inside("sandbox")
    _places: directories.CreatedPaths = inside("sandbox")

    @classmethod
    def from_config(
        cls,
        source: str | PathLike[str] | Mapping[str, object] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        authenticator: Authenticator | None = None,
        roles: RoleLookup | None = None,
        models: Mapping[str, Model] | None = None,
    ) -> Self:
        """Create a sandbox from a file, a mapping, or the environment alone; raise one error with all problems.

        ``authenticator`` and ``roles`` connect the application's users; without them the sandbox manages accounts in
        its database. This creates folders, opens the database, and applies the kernel layer to this process
        permanently.
        """
        return cls(load(source, environ=environ).settings, authenticator=authenticator, roles=roles, models=models)

    def __init__(
        self,
        settings: HostSettings,
        *,
        authenticator: Authenticator | None = None,
        roles: RoleLookup | None = None,
        models: Mapping[str, Model] | None = None,
    ) -> None:
        if (authenticator is None) is not (roles is None):
            raise errors.HostRefused(
                "an authenticator needs a role lookup, and vice versa", fix="pass both, or neither for own accounts"
            )
        if _made.is_set():
            raise errors.HostRefused(
                "this process already has a sandbox, whose rules apply to the whole process",
                fix="share that sandbox, or create the other one in a separate process",
            )
        self.settings = settings
        self.is_started = False
        self.closing = asyncio.Event()
        self._places = directories.CreatedPaths()
        try:
            directories.prepare_directories(settings, self._places)
        except BaseException:
            self._places.remove()
            raise
        # Remove nothing without the lock: the process that holds it may use the created files.
        self._ownership = DatabaseLock(directories.database_file(settings))
        try:
            self._open(authenticator, roles)
            self._run(models)
        except BaseException:
            self._places.remove()
            self._ownership.release()
            raise
        _made.set()

    def _open(self, authenticator: Authenticator | None, roles: RoleLookup | None) -> None:
        """Open and check the database, then close its connections: the kernel layer must be applied without any."""
        self.access = _access(self.settings, self._places)
        try:
            self.accounts = None
            if authenticator is None or roles is None:
                end = self.access.administration.end_session
                accounts = Accounts(self.access.store.database, self.settings, on_session_end=end)
                self.access.node.add_chore(accounts.tidy)
                self.accounts = authenticator = roles = accounts
            self.authenticator, self.roles = authenticator, roles
            self.idempotency = IdempotencyKeys(self.access.store.database)
            self.access.node.add_chore(self.idempotency.tidy_sometimes)
        finally:
            self.access.store.close()

    def _run(self, models: Mapping[str, Model] | None) -> None:
        """Apply the kernel layer, then create the runtime, which seals the guard."""
        settings = self.settings
        known = open_models(settings, models)
        # The database is used before the runtime adds its sources, so the packet filter needs it from the start.
        own = AllowlistBuilder([config_source(directories.own_services(settings))])
        runtime = settings.for_runtime()
        self.kernel = Kernel(
            settings.os,
            directories.landlock_application_paths(settings, discover(runtime)),
            endpoints=own,
            template=template_command(settings.worker.preload),
        )
        self.kernel.prepare()
        self.kernel.confine()
        try:
            self.observations = Observations()
            self.runtime = Runtime(
                runtime,
                self.access,
                models=known,
                protected_paths=directories.protected_paths(settings),
                recorder=self.observations,
                observer=self.observations,
                kernel=self.kernel,
                endpoints=settings.endpoints,
                requester=self._requester,
            )
            check_configured(settings.extensions, self.runtime.registry)
            self.models = StoredModels(self.runtime.store, self.access.keys.ring, self.runtime.ai.models)
            self.installing = BackgroundInstaller(self.runtime)
            self.observations.grounds = ReasonFinder(self.runtime, self.access.service)
        except BaseException:
            self.kernel.stop()
            raise

    # ---- life

    async def start(self) -> None:
        """Load the decisions and the extensions, and start serving. A broken extension is listed; the others run."""
        # The resources of a sandbox are opened once, before the kernel layer.
        if self.is_started:
            raise errors.HostRefused("this sandbox is already started", fix="share the running one")
        if self.closing.is_set():
            raise errors.HostRefused("this sandbox was stopped and cannot start again", fix="start a new process")
        self._places = directories.CreatedPaths()  # in use from now on, so never removed
        try:
            await asyncio.to_thread(self.access.node.start)
            await asyncio.to_thread(self._mark_lost)
            await asyncio.to_thread(self._follow_models)
            await self.runtime.start()
            await asyncio.to_thread(record_modes, self, utc_now())
        except BaseException:
            await asyncio.to_thread(self.close)
            raise
        self.access.resumes.start()
        self.is_started = True
        await self.installing.begin_configured(self.settings.extensions)

    def _mark_lost(self) -> None:
        """Mark running work as lost immediately: no other process serves this database."""
        if directories.database_file(self.settings):
            now = utc_now()
            self.runtime.store.mark_lost(silent_since=now + _AGES, now=now)

    def _follow_models(self) -> None:
        """Read the models of the database, now and after each change on any node."""
        self.models.refresh()
        self.access.node.on_change(self.models.refresh)
        self.access.node.add_chore(self.models.refresh)

    async def stop(self) -> None:
        """Stop all running work and release all resources. Safe to call twice."""
        self.closing.set()
        if self.is_started:
            self.is_started = False
            await self.installing.stop()
            # Resume actions run on this event loop, so wait for them while it runs.
            await asyncio.to_thread(self.access.resumes.stop)
            await self.runtime.stop()
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Release the resources of a sandbox that was never started. Safe to call twice."""
        self.access.stop()
        self.kernel.stop()
        self._ownership.release()

    def abandon(self) -> None:
        """Close a sandbox that never served, and remove the keys, database and folders created for it."""
        self.access.stop()
        self._places.remove()
        self.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @asynccontextmanager
    async def lifespan(self, _: object = None) -> AsyncIterator[None]:
        """Start and stop with an application: ``FastAPI(lifespan=sandbox.lifespan)``."""
        async with self:
            yield

    # ---- users

    def caller(self, identity: Identity) -> Caller | None:
        """Return a user with current roles, for the services; None for a disabled user."""
        found = self.roles.roles(identity.user_id)
        return None if found is None else self.caller_with(identity, found)

    def caller_with(self, identity: Identity, found: Roles) -> Caller:
        """Return a user with known roles, for the services."""
        return Caller(identity.user_id, found.organization_id, identity.session_key, found.role, found.access_level)

    def _requester(self, origin: Requester) -> Caller:
        """Return a requester with current roles, which may have changed since the request."""
        if not origin.user_id:
            return Caller(session_key=origin.session_key, organization_id=origin.organization_id)
        found = self.roles.roles(origin.user_id)
        if found is None:
            raise errors.RuntimeServiceFailed(f"user {origin.user_id!r} does not exist or is disabled: nothing was run")
        present = self.caller_with(Identity(origin.user_id, origin.session_key), found)
        return Caller(*present[:-1], task_id=origin.task_id)


def _access(settings: HostSettings, places: directories.CreatedPaths) -> Access:
    """Open the access service; raise precise errors for problems with its database or keys."""
    if _check_keys(settings):
        places.add_file(settings.key_file)
    wanted = AccessSettings(
        database=settings.database,
        connections=settings.database_connections,
        key_file=settings.key_file,
        stream_type=settings.stream_type,
        stream=settings.stream,
        poll_seconds=settings.poll_seconds,
        pending_lifetime=timedelta(days=settings.pending_days),
        managers=settings.managers,
        resume=ResumeSettings(lease=max(_LEASE, timedelta(seconds=2 * settings.call_timeout))),
    )
    try:
        return Access(wanted, GuardSurroundings())
    except errors.StoreUnavailable as error:
        reason = unreachable_reason(error)
        if not directories.database_file(settings):
            raise unreachable_error(settings.database, reason) from None
        shown = shown_url(parse_url(settings.database, needs_folder=False))
        raise errors.StateUnusable(
            f"the database {shown} cannot be used: {reason}",
            fix="check that it exists and that this user may use it, or set database.url",
        ) from None


def _check_keys(settings: HostSettings) -> bool:
    """Read or create the key file; raise if it is not usable. Return whether it was created."""
    try:
        is_new = make_key_file(settings.key_file)
        KeyRing.open(settings.key_file)
    except OSError as error:
        raise errors.StateUnusable(
            f"the key file {settings.key_file} cannot be used: {error.strerror}",
            fix="make it readable for the user of this process, or set database.key_file",
        ) from None
    except errors.InvalidInputError as error:
        raise errors.StateUnusable(
            f"the key file cannot be used: {' '.join(str(error).split())}",
            fix="restore the key file that was created with the database: it encrypts the resume contexts",
        ) from None
    return is_new
