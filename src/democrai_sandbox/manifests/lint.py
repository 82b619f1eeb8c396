"""Lint: advice about entries that grant more than is probably needed, and packages whose native code no guard sees."""

from __future__ import annotations

import ipaddress
import os
import re
from collections import Counter
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from democrai_sandbox import policy
from democrai_sandbox.policy.hosts import LOOPBACK, host_key, is_address
from democrai_sandbox.policy.paths import folder_before_pattern, pattern_in

from .coverage import Coverage
from .limits import LARGEST
from .loader import manifest_to_dict, open_at_once
from .models import Manifest, McpServer, ModuleManifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_FILES, _HOSTS, _BOTH = "files", "connections", "files and connections"

NATIVE_ACCESS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *("apsw", "av", "cv2", "faiss", "fitz", "h5py", "lmdb", "netCDF4", "onnxruntime", "plyvel", "polars"),
                *("pymupdf", "pypdfium2", "rocksdict", "safetensors", "sentencepiece", "soundfile", "tables"),
                *("tokenizers", "xgboost", "lightgbm", "catboost"),
            ),
            _FILES,
        ),
        **dict.fromkeys(
            (
                *("MySQLdb", "confluent_kafka", "cx_Oracle", "grpc", "oracledb", "psycopg", "psycopg2", "pycurl"),
                *("pymssql", "pynng", "pyodbc", "zmq"),
            ),
            _HOSTS,
        ),
        **dict.fromkeys(
            ("duckdb", "fiona", "hf_xet", "lancedb", "lxml", "osgeo", "pyarrow", "pyogrio", "rasterio", "tensorflow"),
            _BOTH,
        ),
    }
)
"""Resources that each import root opens directly: the only such list, for the lint, ``doctor`` and the console.

A package belongs here if ordinary code calls it with a path, URL or address, and it accesses that without any call that
CPython knows of. Packages that open files in Python and parse them in native code (numpy, pandas) do not belong here.
"""

_ROOTS = "|".join(map(re.escape, NATIVE_ACCESS))
_IMPORT = re.compile(
    rf"^[ \t]*(?:from[ \t]+({_ROOTS})[ \t.]|import[ \t]+(?:[\w., \t]*,[ \t]*)?({_ROOTS})(?![\w]))".encode(),
    re.MULTILINE,
)


def native_imports(sources: Iterable[bytes]) -> Iterator[str]:
    """Yield the packages of the list that Python sources import, each once."""
    found = (match[1] or match[2] for source in sources for match in _IMPORT.finditer(source))
    yield from dict.fromkeys(root.decode() for root in found)


SENSITIVE_IMPORTS = frozenset({"ctypes", "_ctypes", "cffi", "_cffi_backend"})
"""Import roots that a guard refuses by default; other imports need no declaration."""

_UNENCRYPTED = {"http": "https", "ws": "wss"}
_MOST_FILES = 2000
_MOST_FOLDERS = 2000
_LARGEST_FILE = 1024 * 1024


class Severity(StrEnum):
    """Severity of a finding."""

    WARNING = "warning"
    """Grants more than a reviewer would expect."""
    NOTICE = "notice"
    """Has no effect, or deserves a second look."""


class FindingCode(StrEnum):
    """Type of a finding. Codes are stable."""

    BROAD_ROOT = "broad_root"
    CHECKOUT_ROOT = "checkout_root"
    BARE_HOST = "bare_host"
    WILDCARD_HOST = "wildcard_host"
    ADDRESS_RANGE = "address_range"
    PLAIN_HTTP = "plain_http"
    COVERED_ENTRY = "covered_entry"
    NEEDLESS_IMPORT = "needless_import"
    UNUSED_IMPORT = "unused_import"
    SENSITIVE_IMPORT = "sensitive_import"
    NEEDLESS_LIMIT = "needless_limit"
    NATIVE_ACCESS = "native_access"
    PATTERN_NAME = "pattern_name"
    UNENFORCED = "unenforced"


@dataclass(frozen=True, slots=True)
class Finding:
    """Advice about one place in a manifest."""

    code: FindingCode
    severity: Severity
    pointer: str
    """JSON pointer of the entry or value."""
    message: str
    advice: str
    line: int = 0
    """Line in the text, or zero without a text."""

    def __str__(self) -> str:
        """Return the finding on one line."""
        place = f"line {self.line}: " if self.line else ""
        return f"{place}{self.pointer}: {self.severity}: {self.message} ({self.code}). {self.advice}"


class _PlacedRule(NamedTuple):
    """Rule with the location of its entry."""

    rule: policy.AccessRule
    entry: str
    """JSON pointer of the entry."""
    item: int | None
    """Index in the entry's list of operations, if it has several."""


def lint(
    manifest: Manifest,
    *,
    sensitive_imports: Iterable[str] = SENSITIVE_IMPORTS,
    in_process: bool = True,
    unenforced: Iterable[str] = (),
) -> tuple[Finding, ...]:
    """Return the findings about a manifest, in the order of its text.

    ``in_process`` says whether a module runs in the host's process. ``unenforced`` are the restrictions that the kernel
    of the machine does not enforce for workers and children. Reads the disk next to the manifest and at the declared
    roots, but changes and imports nothing.
    """
    found: dict[Finding, None] = {}
    for pointer in manifest.sections:
        declared = list(_declared(manifest, pointer))
        for one in declared:
            found.update(dict.fromkeys(_target_findings(one, manifest.source.folder)))
        found.update(dict.fromkeys(_covered_entries(declared)))
        found.update(dict.fromkeys(_import_findings(manifest, pointer, frozenset(sensitive_imports))))
        found.update(dict.fromkeys(_limit_findings(manifest, pointer)))
    if in_process and isinstance(manifest, ModuleManifest):
        found.update(dict.fromkeys(_native_findings(manifest)))
    if not isinstance(manifest, McpServer):
        found.update(dict.fromkeys(map(_unenforced, unenforced)))
    return tuple(sorted((_placed(finding, manifest) for finding in found), key=lambda finding: finding.line))


def broadness(rule: policy.AccessRule) -> tuple[Finding, ...]:
    """Return the findings about a single rule, without its manifest."""
    return tuple(_target_findings(_PlacedRule(rule, "", None), None))


def _declared(manifest: Manifest, pointer: str) -> Iterator[_PlacedRule]:
    """Yield the rules of a section with their entries, including repeated ones."""
    if isinstance(manifest, McpServer):
        yield from (_PlacedRule(rule, "/endpoint_url", None) for rule in manifest.access)
        return
    for position, entry in enumerate(_written(manifest, pointer).get("access") or ()):
        place = policy.pointer_to(pointer, "access", position)
        rules = policy.parse_access([entry], base=manifest.source.folder)
        for rule in rules:
            yield _PlacedRule(rule, place, entry["operation"].index(rule.operation) if len(rules) > 1 else None)


def _written(manifest: Manifest, pointer: str) -> dict[str, Any]:
    """Return a section as written, or as it would be written."""
    whole = manifest_to_dict(manifest) if manifest.source.value is None else manifest.source.value
    section = whole.get(pointer[1:], {}) if pointer else whole
    return dict(section)


def _target_findings(declared: _PlacedRule, folder: str | None) -> Iterator[Finding]:
    rule = declared.rule
    if rule.resource_type is policy.ResourceType.FILESYSTEM:
        yield from _root_findings(declared, folder)
    elif rule.resource_type is policy.ResourceType.NETWORK:
        yield from _network_findings(declared)


def _root_findings(declared: _PlacedRule, folder: str | None) -> Iterator[Finding]:
    written = declared.rule.normalized_target
    if pattern_in(declared.rule.target) and not os.path.lexists(written):
        message = f"file targets have no wildcards, and a file with the exact name {written} does not exist"
        folder_named = folder_before_pattern(written) or "/"
        advice = f"Name the folder {folder_named}, which covers everything below it, or each file."
        yield Finding(FindingCode.PATTERN_NAME, Severity.WARNING, declared.entry, message, advice)
    root = os.path.realpath(written)
    broad = next((path for path in (written, root) if _is_broad(path)), None)
    if broad is not None:
        message = f"{broad} contains far more than one extension needs"
        advice = "Name the folder that is used, or request approval for paths that are chosen at run time."
        yield Finding(FindingCode.BROAD_ROOT, Severity.WARNING, declared.entry, message, advice)
        return
    if folder is not None and policy.is_at_or_below(root, os.path.realpath(folder)):
        return
    checkout = next((place for place in policy.prefixes_of(root) if os.path.lexists(f"{place}/.git")), None)
    if checkout is not None:
        message = f"{root} is in the checkout {checkout}, with its sources, history and uncommitted files"
        advice = "Name a data folder outside the checkout."
        yield Finding(FindingCode.CHECKOUT_ROOT, Severity.WARNING, declared.entry, message, advice)


def _is_broad(root: str) -> bool:
    """Return whether a root is the whole disk, a top-level folder or a home folder."""
    parts = root.strip("/").split("/")
    return len(parts) == 1 or (len(parts) == len(("home", "user")) and parts[0] == "home")


def _network_findings(declared: _PlacedRule) -> Iterator[Finding]:
    target = policy.parse_declaration(declared.rule.normalized_target)
    place, name = declared.entry, target.normalized
    warning = Severity.WARNING
    if target.kind is policy.TargetKind.HOST and target.port is None:
        advice = f"Write https://{target.host}/path for requests, or {target.host}:port for sockets."
        yield Finding(FindingCode.BARE_HOST, warning, place, f"{name} covers every port and protocol", advice)
    elif target.kind is policy.TargetKind.WILDCARD:
        advice = "Name the hosts that are used."
        yield Finding(FindingCode.WILDCARD_HOST, warning, place, f"{name} covers unlisted hosts", advice)
    elif target.kind is policy.TargetKind.NETWORK:
        advice = "Name the addresses and ports that are used."
        yield Finding(FindingCode.ADDRESS_RANGE, warning, place, f"{name} covers every port of a range", advice)
    elif target.scheme in _UNENCRYPTED and not _is_loopback(target.host):
        secure = f"{_UNENCRYPTED[target.scheme]}://"
        message = f"{name} is not encrypted: the data can be read and changed in transit"
        yield Finding(FindingCode.PLAIN_HTTP, warning, place, message, f"Use {secure} if the server offers it.")


def _is_loopback(host: str) -> bool:
    return host_key(host) == LOOPBACK or (is_address(host) and ipaddress.ip_address(host).is_loopback)


def _covered_entries(declared: list[_PlacedRule]) -> Iterator[Finding]:
    """Find entries, or operations of an entry, that another entry already covers."""
    coverage = Coverage(one.rule for one in declared)
    covered: dict[str, list[tuple[_PlacedRule, _PlacedRule]]] = {}
    for position, one in enumerate(declared):
        other = next((declared[found] for found in coverage.covering(one.rule) if found != position), None)
        if other is not None:
            covered.setdefault(one.entry, []).append((one, other))
    sizes = Counter(one.entry for one in declared)
    for entry, pairs in covered.items():
        whole = len(pairs) == sizes[entry]
        for one, other in pairs[:1] if whole else pairs:
            place = entry if whole or one.item is None else policy.pointer_to(entry, "operation", one.item)
            what = "the entry" if whole else f"'{one.rule.operation}'"
            message = f"{what} is already covered by {other.entry} ({other.rule.normalized_target})"
            advice = "Remove one of the two: the broad one if the narrow one is enough."
            yield Finding(FindingCode.COVERED_ENTRY, Severity.NOTICE, place, message, advice)


def _import_findings(manifest: Manifest, pointer: str, sensitive: frozenset[str]) -> Iterator[Finding]:
    for position, root in enumerate(_written(manifest, pointer).get("allowed_imports") or ()):
        place = policy.pointer_to(pointer, "allowed_imports", position)
        if root not in sensitive:
            advice = "Remove it: only sensitive imports are listed here, other imports need no permission."
            yield Finding(FindingCode.NEEDLESS_IMPORT, Severity.NOTICE, place, f"{root} needs no permission", advice)
        elif _is_unused(root, manifest.source.folder):
            message = f"no Python file beside the manifest mentions {root}"
            advice = "Remove it: a library that imports it needs no permission."
            yield Finding(FindingCode.UNUSED_IMPORT, Severity.WARNING, place, message, advice)
        else:
            message = f"{root} can do everything that the process can do"
            advice = "Prefer a dependency that does not need it."
            yield Finding(FindingCode.SENSITIVE_IMPORT, Severity.NOTICE, place, message, advice)


def _native_findings(manifest: ModuleManifest) -> Iterator[Finding]:
    """Find packages whose native code accesses files and hosts without a check by the guard."""
    folder = manifest.source.folder
    advice = f'Run it in a worker that the kernel confines: "{manifest.subject}": process in sandbox.isolation.'
    for root in native_imports(filter(None, map(_text_of, _sources(folder)))) if folder is not None else ():
        opened = f"it imports {root}, whose native code opens {NATIVE_ACCESS[root]} directly"
        message = f"{opened}; the guard in the process of the host cannot see that"
        yield Finding(FindingCode.NATIVE_ACCESS, Severity.WARNING, "/name", message, advice)


def _unenforced(text: str) -> Finding:
    advice = "Run it on a machine that can, or rely on the guard, which does not see programs and native code."
    message = f"the kernel of this machine does not enforce its rules completely: {text}"
    return Finding(FindingCode.UNENFORCED, Severity.NOTICE, "/name", message, advice)


def _limit_findings(manifest: Manifest, pointer: str) -> Iterator[Finding]:
    """Find limits without effect, which a reviewer could mistake for protection."""
    written = _written(manifest, pointer).get("limits")
    if written is None:
        return
    place = policy.pointer_to(pointer, "limits")
    notice, advice = Severity.NOTICE, "Remove it, or set a number that can be reached."
    if not written:
        yield Finding(FindingCode.NEEDLESS_LIMIT, notice, place, "it contains no limit", advice)
    for name, number in written.items():
        if number >= LARGEST[name]:
            message = f"{number:,} is more than any machine has"
            yield Finding(FindingCode.NEEDLESS_LIMIT, notice, policy.pointer_to(place, name), message, advice)


def _is_unused(root: str, folder: str | None) -> bool:
    """Return whether all sources next to the manifest could be read and none contains the word."""
    sources = [] if folder is None else _sources(folder)
    word = re.compile(rb"\b" + re.escape(root.encode()) + rb"\b")
    return bool(sources) and not any(_may_hold(word, source) for source in sources)


def _sources(folder: str) -> list[str]:
    """Return the Python files in and below a folder, or an empty list if there are too many."""
    found: list[str] = []
    for visited, (place, _, names) in enumerate(os.walk(folder)):
        found += (f"{place}/{name}" for name in names if name.endswith(".py"))
        if visited >= _MOST_FOLDERS or len(found) > _MOST_FILES:
            return []
    return found


def _may_hold(word: re.Pattern[bytes], source: str) -> bool:
    text = _text_of(source)
    return text is None or len(text) > _LARGEST_FILE or word.search(text) is not None


def _text_of(source: str) -> bytes | None:
    """Return the content of a file up to a limit, or None if it cannot be read."""
    try:
        with open(source, "rb", opener=open_at_once) as stream:
            return stream.read(_LARGEST_FILE + 1) or b""  # None from an empty pipe
    except OSError:
        return None


def _placed(finding: Finding, manifest: Manifest) -> Finding:
    place = manifest.source.place(finding.pointer)
    return finding if place is None else replace(finding, line=place.line)
