"""Parts of the adapters: replaced methods, checks of HTTP requests, unwrapped denials, and separate connection pools.

The core is the authority: it checks each permit, and each HTTP request again on the wire. Adapters only raise the
denial earlier, with the caller's method and URL, and before the client wraps it in another error.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from democrai_sandbox.guard import _core
from democrai_sandbox.policy import SandboxError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from types import ModuleType, TracebackType

_HTTPS_PORT = 443
_HTTP_PORT = 80
_SECURE = frozenset({"https", "wss"})
_SCHEMES = frozenset({"http", "https", "ws", "wss"})
HTTP_PREFIXES = ("http://", "https://")
_LONGEST_CHAIN = 64
_UPGRADE_LENGTH = 7

UNGUARDED: AbstractContextManager[Any] = nullcontext()


class PermittedRequest:
    """HTTP request in progress: holds its permit, and raises a denial instead of the client's error."""

    __slots__ = ("_ticket",)

    def __init__(self, ticket: AbstractContextManager[Any]) -> None:
        self._ticket = ticket

    def __enter__(self) -> None:
        self._ticket.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ticket.__exit__(kind, error, trace)
        if error is not None:
            raise_denial(error)


def permitted(ticket: AbstractContextManager[Any] | None) -> AbstractContextManager[Any]:
    """Return the context in which a request runs with its permit; without one, no guard applies."""
    return UNGUARDED if ticket is None else PermittedRequest(ticket)


def is_web(url: object) -> bool:
    """Return whether a URL has an HTTP or websocket scheme; clients may support others, which are not checked here."""
    if not isinstance(url, str):
        return False
    return url.startswith(HTTP_PREFIXES) or url.partition(":")[0].lower() in _SCHEMES


def asks_for_websocket(url: str, headers: Iterable[tuple[bytes, bytes]] = ()) -> bool:
    """Return whether an HTTP request opens a websocket, according to its URL or its ``Upgrade`` header."""
    if url[:2].lower() == "ws":
        return True
    for name, value in headers:
        if len(name) == _UPGRADE_LENGTH and name.lower() == b"upgrade" and value.lower() == b"websocket":
            return True
    return False


def request_url(scheme: str, host: str, port: object, path: str) -> str:
    """Return the URL of a request line on a connection to this host.

    For a proxy, the request line contains a whole URL, which is returned. The port is always included, so that an
    invalid path cannot become part of the host; the core rejects it.
    """
    if path[:1] == "/" and port is not None and ":" not in host:
        return f"{scheme}://{host}:{port}{path}"  # the usual case, in one step
    if not path.startswith("/"):
        if path in ("", "*"):
            path = "/"
        elif path.partition("://")[0].isalnum() and "://" in path:
            return path
    if ":" in host and not host.startswith("["):
        host = f"[{host}]"
    if port is None:
        port = _HTTPS_PORT if scheme in _SECURE else _HTTP_PORT
    return f"{scheme}://{host}:{port}{path}"


def raise_denial(error: BaseException) -> None:
    """Raise the denial that a client wrapped in another error, if it did."""
    denial = unwrap(error)
    if denial is None or denial is error:
        return
    try:
        raise denial
    finally:
        # The client's error references the denial. As its context it would form a cycle and keep all frames alive.
        denial.__context__ = None
        del denial, error


def unwrap(error: BaseException) -> SandboxError | None:
    """Return the sandbox error that this error wraps, or None.

    Contexts are ignored: an error that was being handled when the request was made is unrelated.
    """
    seen: set[int] = set()
    queue: list[BaseException] = [error] if isinstance(error, Exception) else []
    while queue and len(seen) < _LONGEST_CHAIN:
        found = queue.pop(0)
        if isinstance(found, SandboxError):
            return found
        if id(found) not in seen:
            seen.add(id(found))
            queue.extend(item for item in _inside(found) if isinstance(item, BaseException))
    return None


def _inside(error: BaseException) -> Iterator[object]:
    """Yield the causes of an error, the nearest first."""
    yield error.__cause__
    yield from error.args
    yield getattr(error, "reason", None)
    if isinstance(error, BaseExceptionGroup):
        yield from error.exceptions


if TYPE_CHECKING:
    Method = Callable[..., Any]
    Install = Callable[[ModuleType], bool]

_MARK = "_democrai_sandbox_adapter"
_EVERYONE = "for_everyone"
_PAST = "past"
_CHECK = "check"
_LOOKS = ("__module__", "__name__", "__qualname__", "__doc__", "__annotations__")
_CALLING = ("__code__", "__defaults__", "__kwdefaults__")
_told: set[str] = set()


class _Point(NamedTuple):
    """Method to be replaced."""

    owner: Any
    name: str
    original: Any
    make: Callable[[Method], Method]


def adapter(*points: tuple[str, str, Callable[[Method], Method]]) -> Install:
    """Return an installer for methods: class (dotted, from the module), name of the method, factory of the wrapper.

    The wrapper is called only under a guard: a gate of the core passes other callers to the original method.
    All methods are looked up first: a package that fails during the lookup, because it is broken or partly installed,
    is left unchanged.
    """

    def install(module: ModuleType) -> bool:
        if is_loading(module):
            return False
        try:
            found = [_point(module, *point) for point in points]
        except Exception as error:  # noqa: BLE001 - attributes of a module can be code, and do anything
            unexpected(f"{_name_of(module)} ({type(error).__name__} during the lookup)")
            return False
        for point in found:
            if point is not None:
                setattr(point.owner, point.name, wrapped(point.original, point.make))
        return True

    return install


def is_loading(module: ModuleType) -> bool:
    """Return whether a module is still being imported, so that its classes may be missing."""
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _point(module: ModuleType, path: str, name: str, make: Callable[[Method], Method]) -> _Point | None:
    owner: Any = module
    for part in path.split("."):
        owner = getattr(owner, part, None)
    original = getattr(owner, name, None)
    if not callable(original):
        unexpected(f"{_name_of(module)}.{path}.{name}")
        return None
    return None if is_wrapped(original) else _Point(owner, name, original, make)


def wrapped(original: Any, make: Callable[[Method], Method]) -> Any:
    """Return ``make(original)``, behind a gate of the core unless it also serves unguarded callers."""
    wrapper = None if make is raises_denials else make(original)
    if hasattr(make, _EVERYONE):
        return _like(original, wrapper)
    lets_out = raise_denial if hasattr(make, _CHECK) else None
    return _core.gate(original, wrapper, _attributes(original), getattr(make, _PAST, None), lets_out)


def is_wrapped(method: object) -> bool:
    """Return whether ``wrapped`` returned a method."""
    return bool(getattr(method, _MARK, False))


def _name_of(module: ModuleType) -> str:
    return str(vars(module).get("__name__", "")) if type(module) is type(sys) else type(module).__name__


def for_everyone(make: Callable[[Method], Method]) -> Callable[[Method], Method]:
    """Mark a wrapper that also runs for unguarded callers, because they return connections that subjects used."""
    setattr(make, _EVERYONE, True)
    return make


def past(attribute: str) -> Callable[[Callable[[Method], Method]], Callable[[Method], Method]]:
    """Mark a wrapper that is skipped for objects with this attribute."""

    def mark(make: Callable[[Method], Method]) -> Callable[[Method], Method]:
        setattr(make, _PAST, attribute)
        return make

    return mark


def check(make: Callable[[Method], Method]) -> Callable[[Method], Method]:
    """Mark a wrapper that only checks the call and returns its permit, or None; the core then calls the method.

    The core holds the permit during the call, and raises the denial that the client has wrapped in its own error,
    also from a coroutine. It calls the method with the arguments as they are, which is faster than a wrapper.
    A coroutine runs after the call, so its check returns None.
    """
    setattr(make, _CHECK, True)
    return make


@check
def raises_denials(original: Method) -> Method:
    """Check nothing; the core raises the denials that the method has wrapped in other errors."""
    return original


def _attributes(original: Any) -> dict[str, Any]:
    """Return the attributes that make ``inspect`` treat a gate like the function it replaces."""
    found = {name: getattr(original, name) for name in (*_LOOKS, *_CALLING) if hasattr(original, name)}
    return found | {"__wrapped__": original, _MARK: True}  # the core checks the callers of the original, too


def _like(original: Any, wrapper: Any) -> Any:
    for attribute in _LOOKS:
        if hasattr(original, attribute):
            setattr(wrapper, attribute, getattr(original, attribute))
    wrapper.__wrapped__ = original  # for the signature in inspect; the core checks its callers too
    setattr(wrapper, _MARK, True)
    return wrapper


def unexpected(what: str) -> None:
    """Log once that a client has an unexpected structure. Its sockets are still checked."""
    if what in _told:
        return
    _told.add(what)
    # Not imported, because an import here would call the adapters again. Code that makes requests has loaded it.
    logging = sys.modules.get("logging")
    if logging is None:
        return
    logging.getLogger("democrai_sandbox.guard").warning(
        "%s is missing: the guard does not know this version of the client and checks only its connections", what
    )


_T = TypeVar("_T")
_NAME = "_democrai_sandbox_pools"
_MOST_SUBJECTS = 32


class Apart(Generic[_T]):
    """Pools of the subjects that share one client, by subject key; the least recently used one is closed."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._pools: dict[int, _T] = {}
        self._latest = 0

    def get(self, key: int, make: Callable[[Any], _T], owner: Any) -> tuple[_T, list[_T]]:
        """Return the pool of a subject, and surplus pools to be closed."""
        if key == self._latest and (found := self._pools.get(key)) is not None:
            return found, []
        with self._lock:
            pool = self._pools.pop(key, None)
            if pool is None:
                pool = make(owner)
            self._pools[key] = pool
            self._latest = key
            surplus = [old for old in list(self._pools)[:-_MOST_SUBJECTS] if not self.is_busy(self._pools[old])]
            return pool, [self._pools.pop(old) for old in surplus]

    def is_busy(self, pool: _T) -> bool:  # noqa: ARG002 - for pools that know it
        """Return whether closing the pool would interrupt running requests."""
        return False

    def find(self, key: int) -> _T | None:
        """Return the pool of a subject, if it has one."""
        return self._pools.get(key)

    def drain(self) -> list[_T]:
        """Remove and return all pools, to be closed."""
        with self._lock:
            pools = list(self._pools.values())
            self._pools.clear()
            return pools


_creation = Lock()


def apart(owner: Any, kind: type[Apart[_T]] = Apart) -> Apart[_T]:
    """Return the subjects' pools of this object."""
    found: Apart[_T] | None = _pools_of(owner)
    if found is None:
        with _creation:
            found = _pools_of(owner)
            if found is None:
                found = kind()
                object.__setattr__(owner, _NAME, found)
    return found


def _pools_of(owner: Any) -> Any:
    """Return the value of the attribute without ``__dict__``, which would slow all accesses to attributes down."""
    try:
        return object.__getattribute__(owner, _NAME)
    except AttributeError:
        return None


def drained(owner: Any) -> list[Any]:
    """Remove and return the subjects' pools of this object, to be closed with it."""
    found = owner.__dict__.pop(_NAME, None)
    return [] if found is None else found.drain()


def without_pools(owner: Any) -> None:
    """Remove the subjects' pools from a copy of an object."""
    owner.__dict__.pop(_NAME, None)
