"""Verdicts of administrators, one verdict about many requests, and the risk of an approval: a level with reasons."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox import policy
from democrai_sandbox.errors import DecisionConflict, ExternalAccessAdminRequired, StoreUnavailable
from democrai_sandbox.policy.hosts import LOOPBACK, host_key, is_address, mixed_scripts, unicode_host
from democrai_sandbox.policy.paths import pattern_problem

from .values import DecisionEffect, DecisionScope, Expected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from datetime import timedelta

    from .values import AccessTuple, Decision, StoredRequest


class RiskLevel(StrEnum):
    """Level of a risk."""

    HIGH = "high"
    MEDIUM = "medium"
    LOW = "low"

    @property
    def rank(self) -> int:
        """Sort key: higher risk, higher number."""
        return (_LOW, _MEDIUM, _HIGH).index(self)


_HIGH, _MEDIUM, _LOW = RiskLevel
NOT_ASSESSED = 3
"""Rank of requests that an earlier version stored. They are listed first until they are assessed."""


class RiskFactor(NamedTuple):
    """Reason for a risk. Codes are stable."""

    code: str
    level: RiskLevel
    text: str


@dataclass(frozen=True, slots=True)
class RiskAssessment:
    """Highest level of all reasons, and the reasons, the highest first. They inform; they never allow or refuse."""

    level: RiskLevel
    reasons: tuple[RiskFactor, ...]


class History(NamedTuple):
    """Earlier decisions about the same access."""

    denials: int = 0
    revocations: int = 0
    """Number of permanent approvals that an administrator ended."""


NO_HISTORY = History()

OPERATIONS: Mapping[policy.Operation, RiskFactor] = MappingProxyType(
    {
        policy.Operation.READ: RiskFactor("operation", _LOW, "reads files"),
        policy.Operation.RECEIVE: RiskFactor("operation", _LOW, "receives data"),
        policy.Operation.CREATE: RiskFactor("operation", _MEDIUM, "creates files"),
        policy.Operation.MODIFY: RiskFactor("operation", _MEDIUM, "changes files"),
        policy.Operation.CONNECT: RiskFactor("operation", _MEDIUM, "opens a connection that carries data both ways"),
        policy.Operation.SEND: RiskFactor("operation", _MEDIUM, "sends data"),
        policy.Operation.DELETE: RiskFactor("operation", _HIGH, "deletes files"),
        policy.Operation.EXECUTE: RiskFactor("operation", _HIGH, "runs a program"),
    }
)


def assess(
    access: AccessTuple, history: History = NO_HISTORY, *, includes: RiskAssessment | None = None
) -> RiskAssessment:
    """Return the risk of approving an access.

    ``includes`` is the risk of something that it covers: a folder is at least as much of a risk as a file in it.
    """
    found = list(_reasons(access, history))
    if includes is not None:
        found += [reason for reason in includes.reasons if reason not in found]
    reasons = sorted(found, key=lambda reason: -reason.level.rank)
    return RiskAssessment(reasons[0].level, tuple(reasons))


def _reasons(access: AccessTuple, history: History) -> Iterator[RiskFactor]:
    yield OPERATIONS[access.operation]
    if access.resource_type is policy.ResourceType.NETWORK:
        yield from _of_network(access.target, access.operation)
    else:
        yield from _of_path(access.target, access.operation)
    if history.denials:
        yield RiskFactor("denied_before", _MEDIUM, "was denied before")
    if history.revocations:
        yield RiskFactor("revoked_before", _MEDIUM, "was approved before, and the approval was revoked")


# ---- files -----------------------------------------------------------------------------------------------------------

_SECRETS = (
    *("/etc/shadow", "/etc/shadow-", "/etc/gshadow", "/etc/gshadow-", "/etc/sudoers", "/etc/sudoers.d"),
    *("/etc/ssl/private", "/etc/pki/tls/private", "/etc/krb5.keytab", "/etc/kubernetes", "/run/secrets"),
    *("/var/run/secrets", "/etc/NetworkManager/system-connections", "/etc/wireguard", "/etc/letsencrypt"),
)
_SECRETS_OF_A_USER = (
    *("/.ssh", "/.gnupg", "/.aws", "/.azure", "/.kube", "/.config/gcloud", "/.docker", "/.netrc", "/.pgpass"),
    *("/.pypirc", "/.npmrc", "/.git-credentials", "/.config/gh", "/.password-store", "/.local/share/keyrings"),
    *("/.mozilla", "/.config/google-chrome", "/.config/chromium", "/.bash_history", "/.zsh_history"),
    *("/.python_history", "/.my.cnf", "/.vault-token", "/.config/rclone", "/.terraform.d"),
    *("/.cargo/credentials.toml", "/.config/pip/pip.conf"),
)
_SECRET_NAME = re.compile(
    r"\.env(\.[\w-]+)?|\.netrc|\.pgpass|\.git-credentials|\.htpasswd|id_(rsa|dsa|ecdsa|ed25519)(_sk)?"
    r"|.*\.(pem|key|p12|pfx|jks|keystore|kdbx|ppk|ovpn|asc|keytab)"
    r"|(credentials|secrets?)(\.json|\.toml|\.ya?ml)?|service[-_]account.*\.json",
    re.IGNORECASE,
)
_SECRETS_OF_A_PROCESS = re.compile(r"/proc/(\d+|self|thread-self)/(environ|mem|maps|fd|root|cwd)(/.*)?|/proc/kcore")
_PUBLIC = ("/usr/share", "/usr/lib", "/usr/include", "/usr/local/share")
_HOME = re.compile(r"(?:/root|/home/[^/]+|/Users/[^/]+|/var/home/[^/]+)(?=/|$)")
_HOMES = frozenset({"/home", "/Users", "/var/home"})
_DEVICE = re.compile(r"/dev/(sd|nvme|vd|xvd|mmcblk|dm-|mapper|mem|kmem|port|disk|loop).*")
_TEMPORARY = "/tmp"  # noqa: S108 - the name of a target; no file is created
_SYSTEM = ("/etc", "/proc", "/sys", "/var", "/run", "/boot", "/dev")
_PROGRAMS = ("/bin", "/sbin", "/usr", "/lib", "/lib64", "/boot", "/opt", "/etc", "/var/spool/cron", "/snap")
_PROGRAMS_OF_A_USER = (
    *("/.bashrc", "/.bash_profile", "/.bash_login", "/.profile", "/.zshrc", "/.zprofile", "/.zshenv", "/.config/fish"),
    *("/.config/autostart", "/.config/systemd", "/.local/bin", "/bin", "/.local/lib", "/.vimrc", "/.gitconfig"),
    *("/.config/git",),
)
_PROGRAM_NAME = re.compile(r".*\.(so(\.\d+)*|exe|dll|sh|bash|py|pyc|pth|service|timer|desktop)", re.IGNORECASE)
_ANY_COMMAND = re.compile(
    r"(ba|da|z|k|fi|c|tc)?sh|busybox|python[\d.]*|perl|ruby|node|deno|bun|php|lua[\d.]*|env|xargs|sudo|su|doas|pkexec"
    r"|docker|podman|kubectl|ssh|systemctl|systemd-run|nsenter|chroot|gdb|strace"
)
_WRITING = frozenset({policy.Operation.CREATE, policy.Operation.MODIFY, policy.Operation.DELETE})


def _of_path(target: str, operation: policy.Operation) -> Iterator[RiskFactor]:
    found = _HOME.match(target)
    inside = target[found.end() :] if found else ""
    if operation is policy.Operation.EXECUTE:
        if _ANY_COMMAND.fullmatch(target.rpartition("/")[2]):
            yield RiskFactor("any_command", _HIGH, "this program can run any command")
        return
    if _is_secret(target, inside):
        yield RiskFactor("secret", _HIGH, "contains keys, passwords or other credentials")
    elif place := _of_place(target, inside, is_in_home=found is not None):
        yield place
    if operation in _WRITING and _is_program(target, inside):
        yield RiskFactor("program", _HIGH, "changes programs, or settings that start programs")


def _of_place(target: str, inside: str, *, is_in_home: bool) -> RiskFactor | None:
    found: tuple[str, RiskLevel, str] | None = None
    if target == "/":
        found = ("everything", _HIGH, "covers every file of the machine")
    elif is_in_home and not inside:
        found = ("home", _HIGH, "covers a whole home folder, with its keys and passwords")
    elif target in _HOMES:
        found = ("homes", _HIGH, "covers the home folders of all users")
    elif _DEVICE.fullmatch(target):
        found = ("device", _HIGH, "is a disk or memory device of the machine")
    elif target.count("/") == 1 and target != _TEMPORARY:
        found = ("broad", _HIGH, "covers a folder at the top of the file system")
    elif is_in_home:
        found = ("in_home", _MEDIUM, "is in a home folder")
    elif _is_below(target, _SYSTEM):
        found = ("system", _MEDIUM, "belongs to the system")
    return RiskFactor(*found) if found else None


def _is_below(path: str, places: Iterable[str]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)


def _is_secret(target: str, inside: str) -> bool:
    if _is_below(target, _SECRETS) or _is_below(inside, _SECRETS_OF_A_USER) or _SECRETS_OF_A_PROCESS.fullmatch(target):
        return True
    return bool(_SECRET_NAME.fullmatch(target.rpartition("/")[2])) and not _is_below(target, _PUBLIC)


def _is_program(target: str, inside: str) -> bool:
    is_inside = _is_below(target, _PROGRAMS) or _is_below(inside, _PROGRAMS_OF_A_USER)
    return is_inside or bool(_PROGRAM_NAME.fullmatch(target))


# ---- network ---------------------------------------------------------------------------------------------------------

_WEB = frozenset({"http", "https", "ws", "wss"})
_WEB_PORTS = frozenset({None, 80, 443, 8080, 8443})
_NOT_ENCRYPTED = frozenset({"http", "ws", "ftp", "telnet", "smtp", "ldap", "redis", "mysql", "postgresql"})
_METADATA_ADDRESSES = frozenset(
    map(
        ipaddress.ip_address,
        ("169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200", "192.0.0.192", "fd00:ec2::254"),
    )
)
_METADATA = frozenset(
    {
        *map(str, _METADATA_ADDRESSES),
        *("metadata.google.internal", "metadata", "instance-data", "metadata.azure.internal"),
    }
)
_PRIVATE_NAMES = (".internal", ".local", ".lan", ".corp", ".home.arpa")
_MOST_ADDRESSES = 256
_CONTROL_SOCKET = re.compile(
    r"/(?:var/)?run/(?:docker|podman/podman|containerd/containerd|crio/crio|dbus/system_bus_socket|systemd/).*"
)


def _of_network(target: str, operation: policy.Operation) -> Iterator[RiskFactor]:
    try:
        parsed = policy.parse_declaration(target)
    except policy.InvalidInputError:
        yield RiskFactor("unreadable", _HIGH, "the target cannot be parsed")
        return
    if parsed.kind is policy.TargetKind.UNIX and _CONTROL_SOCKET.fullmatch(parsed.socket or ""):
        yield RiskFactor("control", _HIGH, "controls the machine or its containers")
        return
    if parsed.kind is policy.TargetKind.UNIX:
        yield RiskFactor("local_service", _MEDIUM, "is a service of this machine")
        return
    yield from _of_host(parsed)
    if parsed.scheme in _NOT_ENCRYPTED and not _is_loopback(parsed):
        level = _MEDIUM if operation is policy.Operation.RECEIVE else _HIGH
        yield RiskFactor("not_encrypted", level, "is not encrypted: the data can be read and changed in transit")
    if parsed.scheme not in _WEB and parsed.port not in _WEB_PORTS:
        yield RiskFactor("service", _MEDIUM, f"uses port {parsed.port}, which is not a web port")


def _of_host(parsed: policy.NetworkTarget) -> Iterator[RiskFactor]:
    host = parsed.host
    if host in _METADATA:
        yield RiskFactor("metadata", _HIGH, "serves the credentials of a cloud machine")
    elif parsed.kind is policy.TargetKind.NETWORK:
        yield from _of_range(host)
    elif parsed.kind is policy.TargetKind.WILDCARD:
        yield RiskFactor("breadth", _MEDIUM, f"covers every host below {host}")
    elif _is_loopback(parsed):
        yield RiskFactor("loopback", _MEDIUM, "reaches services on this machine, which often trust local callers")
    elif is_address(host):
        yield _of_address(host)
    elif "." not in host or host.endswith(_PRIVATE_NAMES):
        yield RiskFactor("private", _MEDIUM, "is a name of a private network")
    yield from _of_letters(host)


def _of_letters(host: str) -> Iterator[RiskFactor]:
    if mixed_scripts(unicode_host(host)):
        yield RiskFactor("confusable", _HIGH, "mixes letters of several scripts, so it can look like another name")
    elif "xn--" in host:
        yield RiskFactor("other_letters", _MEDIUM, "has letters outside ASCII, so it can look like another name")


def _of_range(text: str) -> Iterator[RiskFactor]:
    network = ipaddress.ip_network(text)
    if any(address in network for address in _METADATA_ADDRESSES if address.version == network.version):
        yield RiskFactor("metadata", _HIGH, "includes an address that serves the credentials of a cloud machine")
    level = _HIGH if network.num_addresses > _MOST_ADDRESSES else _MEDIUM
    yield RiskFactor("breadth", level, f"covers {network.num_addresses:,} addresses")


def _of_address(host: str) -> RiskFactor:
    address = ipaddress.ip_address(host)
    if address.is_link_local:
        return RiskFactor("link_local", _HIGH, "is a link-local address, where metadata services run")
    if address.is_private:
        return RiskFactor("private", _MEDIUM, "is an address of a private network")
    return RiskFactor("address", _MEDIUM, "is an address without a name, whose owner can change")


def _is_loopback(parsed: policy.NetworkTarget) -> bool:
    if is_address(parsed.host):
        return ipaddress.ip_address(parsed.host).is_loopback
    return host_key(parsed.host) == LOOPBACK or parsed.host.endswith(".localhost")


LONGEST_REASON = 2000
_LONGEST_ID = 100
MOST_AT_ONCE = 500
"""Maximum number of requests per bulk decision, so that an administrator can review them."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of an attempt to decide."""

    decision: Decision | None
    skipped: str = ""
    """Reason why nothing was stored, if that is not an error."""
    kept: tuple[str, ...] = ()
    """Requests that stay answered after an undo."""


def decide_each(
    request_ids: Iterable[str],
    decide: Callable[[str, int | None], Outcome],
    request_of: Callable[[str], StoredRequest],
    expected: Mapping[str, int],
) -> tuple[tuple[str, Outcome | policy.SandboxError], ...]:
    """Decide the requests one by one and return their outcomes. A missing right to decide aborts the loop."""
    made: list[Decision] = []
    found: list[tuple[str, Outcome | policy.SandboxError]] = []
    own: dict[str, int] = {}
    away: StoreUnavailable | None = None
    for request_id in _checked(request_ids):
        if away is not None:
            found.append((request_id, away))  # waiting for the store again for each request would take minutes
            continue
        try:
            version = expected.get(request_id)
            if version is not None and own:
                # A change by an earlier decision of this loop is not a conflict with another administrator.
                version = max(version, own.get(request_of(request_id).access.digest, 0))
            outcome: Outcome | policy.SandboxError = decide(request_id, version)
        except ExternalAccessAdminRequired:
            raise
        except DecisionConflict as error:
            # A decision of this loop may also have answered this request, which is not a conflict.
            answer = request_of(request_id).decision_id
            outcome = next((Outcome(decision) for decision in made if decision.id == answer), error)
        except StoreUnavailable as error:
            outcome = away = error
        except policy.SandboxError as error:
            outcome = error
        if isinstance(outcome, Outcome) and outcome.decision is not None:
            made.append(outcome.decision)
            own[outcome.decision.access.digest] = outcome.decision.generation
        found.append((request_id, outcome))
    return tuple(found)


def _checked(request_ids: Iterable[str]) -> tuple[str, ...]:
    unique = tuple(dict.fromkeys(request_ids))
    if not unique:
        raise policy.InvalidInputError.of("name at least one request", pointer="/request_ids")
    if len(unique) > MOST_AT_ONCE:
        message = f"expected at most {MOST_AT_ONCE} requests, got {len(unique)}"
        raise policy.InvalidInputError.of(message, pointer="/request_ids")
    return unique


@dataclass(frozen=True, slots=True)
class AdminVerdict:
    """Decision that an administrator makes about a request."""

    effect: DecisionEffect
    scope: DecisionScope
    target: str | None
    reason: str
    lifetime: timedelta | None = None
    expected: int | None = None
    bulk: str = ""


_ACTS = MappingProxyType(
    {
        "session": (DecisionEffect.APPROVAL, DecisionScope.SESSION),
        "permanent": (DecisionEffect.APPROVAL, DecisionScope.PERMANENT),
        "deny": (DecisionEffect.DENIAL, DecisionScope.PERMANENT),
    }
)
"""Acts about requests."""


def request_act(act: str) -> tuple[DecisionEffect, DecisionScope]:
    """Return the effect and scope of an act, or reject the act."""
    if act not in _ACTS:
        raise policy.InvalidInputError.of(f"unknown act {act!r}; one of: session, permanent, deny", pointer="/act")
    return _ACTS[act]


def checked_id(text: str, name: str) -> str:
    """Return a text that can be an id."""
    if type(text) is not str or len(text) > _LONGEST_ID:
        raise policy.InvalidInputError.of(f"expected an id of at most {_LONGEST_ID} characters", pointer=f"/{name}")
    return text


def check_pattern(resource_type: str, target: str) -> None:
    """Refuse a path that contains pattern characters, because a decision matches paths literally."""
    if resource_type == policy.ResourceType.FILESYSTEM and (found := pattern_problem(target, "/target")):
        raise policy.InvalidInputError([found])


def expected_state(about: tuple[AccessTuple, ...], version: int | None) -> Expected | None:
    """Return the state that the caller saw, or None without a version."""
    if version is None:
        return None
    if type(version) is not int or version < 0:
        raise policy.InvalidInputError.of("expected a version number (an integer of at least 0)", pointer="/expected")
    return Expected(about, version)


def checked_reason(text: str) -> str:
    """Return a reason that is not too long."""
    if type(text) is not str or len(text) > LONGEST_REASON:
        raise policy.InvalidInputError.of(f"expected a text of at most {LONGEST_REASON} characters", pointer="/reason")
    return text
