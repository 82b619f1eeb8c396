"""Parser of pasted error lines: the code, and the subject, operation and target in the line."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from democrai_sandbox.policy import EXTERNAL_URL_LOCKED, VALID_OPERATIONS, ResourceType
from democrai_sandbox.policy.paths import folder_of_temporary, literal_target
from democrai_sandbox.policy.rules import written_target

from .catalogue import ENTRIES
from .commands import ErrorUnknown
from .kernel import HELPER_REASONS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from democrai_sandbox.policy.problems import Word

    from .catalogue import ErrorEntry

LONGEST = 64 * 1024
_MOST_LINES = 2000
_OWN = ("sandbox_", "external_access_", "os_sandbox_", "network_target_missing")
_UNMISTAKABLE = sorted((one for one in ENTRIES if one.startswith(_OWN)), key=len, reverse=True)
"""Codes that are unique to this package; the others are recognized only at the start of a line."""
_CODE = re.compile(rf"(?<![\w./-])(?P<code>{'|'.join(_UNMISTAKABLE)})(?![\w/-])(?P<rest>.*)", re.DOTALL)
_WORD_FIRST = re.compile(r"(?P<code>[a-z0-9_]{3,60})(?:: (?P<rest>.*))?", re.DOTALL)
_LOGGED = re.compile(r"^(?:\d\d:\d\d:\d\d [a-z]+ +)?")
_CLASS = re.compile(r"(?<![\w.])democrai_sandbox(?:\.\w+)*\.(?P<name>[A-Z]\w+)(?:: (?P<rest>.*))?", re.DOTALL)
_ASKED = re.compile(r"^\s*(?P<chain>[a-z]+:.+?) asked for: (?P<operation>[a-z]+) (?P<target>.+)$")
_INSTALLED = re.compile(r"extension_install_failed: (?P<subject>(?:engine|extractor):(?P<name>[^\s:]+)): ")
_SOCKET = re.compile(r"^socket:-?\d+/-?\d+/-?\d+$")
_SECTION = re.compile(r'in the "(?P<phase>runtime|install)" section of manifest\.json of ')
_CLASSES: Mapping[str, str] = MappingProxyType({name: code for code, one in ENTRIES.items() for name in one.classes})
_REASONS: Mapping[str, Word] = MappingProxyType({one.word: one for one in HELPER_REASONS if "_" in one.word})
_HELPER = "os_sandbox_helper_failed"
_FILES, _DESCRIPTORS, _NETWORK = "sandbox_filesystem_denied", "sandbox_filesystem_fd_denied", "sandbox_network_denied"

_CLOSING = MappingProxyType({"(": ")", "'": "'", '"': '"', "`": "`", "[": "]"})
_SYMPTOMS = (
    ("symptom_bad_system_call", re.compile(r"SIGSYS|[Bb]ad system call|exit (?:code|status):? (?:-31|159)\b")),
    (
        "symptom_connection_refused",
        re.compile(r"\[Errno (?:111|104)\]|ECONNREFUSED|ECONNRESET|[Cc]onnection (?:refused|reset by peer)"),
    ),
    ("symptom_operation_not_permitted", re.compile(r"\[Errno 1\]|\bEPERM\b|[Oo]peration not permitted")),
    ("symptom_permission_denied", re.compile(r"\[Errno 13\]|\bEACCES\b|[Pp]ermission denied")),
)
_QUOTED_PATH = re.compile(r"""['"](/[^'"]*)['"]""")
_FACTS = MappingProxyType(
    {"subject": "subject", "operation": "operation", "target": "target", "pending_request_id": "request_id"}
)


@dataclass(frozen=True, slots=True)
class ErrorLine:
    """Parsed error line; missing parts are empty."""

    entry: ErrorEntry
    text: str
    """The recognized part."""
    subject: str = ""
    """``kind:name``, or only the name."""
    operation: str = ""
    operations: tuple[str, ...] = ()
    """All operations of the call, if several: opening a file for writing may also create it."""
    target: str = ""
    chain: tuple[str, ...] = ()
    phase: str = ""
    """The phase of an engine or extractor: ``runtime`` or ``install``."""
    request_id: str = ""
    detail: str = ""
    """The text after the code."""
    word: Word | None = None

    @property
    def resource_type(self) -> str:
        """The resource type of a denial; empty for other errors."""
        return {_FILES: "filesystem", _NETWORK: "network"}.get(self.entry.code, "")


def entry_for(reading: ErrorLine) -> str:
    """Return the manifest entry that would allow the access of a line, as JSON; empty without one."""
    if not reading.resource_type or not reading.target or reading.word is not None:
        return ""
    valid = VALID_OPERATIONS[ResourceType(reading.resource_type)]
    operation = list(reading.operations) or reading.operation or f"<{', '.join(sorted(valid))}>"
    target = written_target(reading.resource_type, reading.target)
    return json.dumps(
        {"resource_type": reading.resource_type, "operation": operation, "target": target}, ensure_ascii=False
    )


def read_line(text: str) -> ErrorLine:
    """Parse an error line, a traceback, a log line or a problem document; refuse other texts.

    A line is recognized by its code, by the full name of its class or by a documented sentence, never by similarity.
    Errors caused by the kernel layer have no code: such a line is reported as a symptom.
    """
    text = text[-LONGEST:]
    lines = [line for line in text.splitlines() if line.strip()][-_MOST_LINES:]
    found = _of_document(text) or _of_lines(lines) or _symptom(lines)
    if found is None:
        what = "nothing to explain" if not lines else "not an error of democrai-sandbox"
        raise ErrorUnknown(f"{what}: pass the whole line, with its code")
    return found


# ---- documents -------------------------------------------------------------------------------------------------------


def _of_document(text: str) -> ErrorLine | None:
    """Parse a problem document or a JSON log line."""
    for part in (text, *reversed(text.splitlines()[-_MOST_LINES:])):
        if part.lstrip()[:1] == "{":
            found = _parsed(part)
            if found is not None:
                return _of_members(found)
    return None


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _of_members(found: dict[str, Any]) -> ErrorLine | None:
    code = found.get("code")
    texts = [value for value in found.values() if isinstance(value, str)]
    lines = [line for value in texts for line in value.splitlines() if line.strip()]
    if not isinstance(code, str) or code not in ENTRIES:
        return _of_lines(lines) or _symptom(lines)
    reading = next((one for line in lines if (one := _of_line(line)) and one.entry.code == code), None)
    reading = reading or ErrorLine(ENTRIES[code], code)
    told = {ours: found[name] for name, ours in _FACTS.items() if isinstance(found.get(name), str) and found[name]}
    chain = found.get("subject_chain")
    if isinstance(chain, list) and all(isinstance(one, str) for one in chain):
        told["chain"] = tuple(chain)
    detail = found.get("detail")
    return replace(reading, detail=detail if isinstance(detail, str) else reading.detail, **told)


# ---- lines -----------------------------------------------------------------------------------------------------------


def _of_lines(lines: list[str]) -> ErrorLine | None:
    """Parse the last recognized line, because a traceback ends with the error."""
    found = next(filter(None, map(_of_line, reversed(lines))), None)
    return None if found is None else _with_phase(_with_asker(found, lines), lines)


def _of_line(line: str) -> ErrorLine | None:
    text = line.strip()
    return _by_code(text) or _by_class(text) or _by_sentence(text) or _by_word(text)


def _by_code(text: str) -> ErrorLine | None:
    match = _CODE.search(text)
    if match is None:
        return None
    code, rest = match["code"], match["rest"]
    closing = _CLOSING.get(text[match.start() - 1 : match.start()], "")
    if closing and closing in rest:
        rest = rest[: rest.rindex(closing)]
    if rest[:1] not in ("", ":", ";", ",", ".", " ", ")", "'", '"', "`", "]"):
        return None
    return _parts(code, rest)


def _parts(code: str, rest: str) -> ErrorLine:
    """Parse the text after a code."""
    entry, whole = ENTRIES[code], f"{code}{rest}"
    if not rest.startswith(":"):
        return ErrorLine(entry, code)
    if rest.startswith(": "):
        return ErrorLine(entry, whole, detail=rest[2:].strip())
    given = rest[1:]
    if code in (_FILES, _DESCRIPTORS, _NETWORK):
        subject, target = _split(code, given)
        return ErrorLine(entry, whole, subject=subject, target=target, word=_word(entry, target))
    return ErrorLine(entry, whole, target=given)


def _split(code: str, given: str) -> tuple[str, str]:
    """Split subject and target; the name of a subject can contain colons."""
    if code == _DESCRIPTORS:
        subject, _, target = given.rpartition(":")
        return subject, target
    if code == _FILES and ":/" in given:
        subject, _, path = given.partition(":/")
        return subject, f"/{path}"
    subject, _, target = given.partition(":")
    return subject, target


def _by_class(text: str) -> ErrorLine | None:
    match = _CLASS.search(text)
    if match is None or match["name"] not in _CLASSES:
        return None
    return ErrorLine(ENTRIES[_CLASSES[match["name"]]], match[0], detail=(match["rest"] or "").strip())


def _by_sentence(text: str) -> ErrorLine | None:
    return ErrorLine(ENTRIES[_NETWORK], EXTERNAL_URL_LOCKED) if EXTERNAL_URL_LOCKED in text else None


def _by_word(text: str) -> ErrorLine | None:
    """Parse a line that starts with a code or with a reason of the helper."""
    match = _WORD_FIRST.fullmatch(_LOGGED.sub("", text))
    if match is None:
        return None
    code, rest = match["code"], (match["rest"] or "").strip()
    if code in ENTRIES:
        return ErrorLine(ENTRIES[code], text, detail=rest)
    if code in _REASONS:
        return ErrorLine(ENTRIES[_HELPER], text, detail=rest, word=_REASONS[code])
    return None


def _word(entry: ErrorEntry, target: str) -> Word | None:
    word = _SOCKET.sub("socket:<family>/<type>/<protocol>", target)
    return next((one for one in entry.words if one.word == word), None)


def _with_asker(found: ErrorLine, lines: list[str]) -> ErrorLine:
    """Add the call chain and the access from the second line of ``diagnostics()``."""
    for line in lines:
        match = _ASKED.match(line)
        if match is not None and found.target in ("", match["target"]):
            chain, target = tuple(match["chain"].split(" -> ")), match["target"]
            found = replace(found, chain=chain, subject=chain[-1], target=target)
            return replace(found, operation=match["operation"], operations=_needed(lines, target))
    return found


def _with_phase(found: ErrorLine, lines: list[str]) -> ErrorLine:
    """Add the phase, from the hint of a denial or from a failed installation."""
    for line in lines:
        if (match := _INSTALLED.search(line)) and found.subject in (match["name"], match["subject"]):
            return replace(found, subject=match["subject"], phase="install")
        if match := _SECTION.search(line):
            return replace(found, phase=match["phase"])
    return found


def _needed(lines: list[str], target: str) -> tuple[str, ...]:
    """Return the operations in the entry of a hint, if several."""
    written = {target, literal_target(target), literal_target(folder_of_temporary(target) or target)}
    for line in lines:
        entry = _parsed(line) if line.lstrip()[:1] == "{" else None
        named = entry.get("operation") if entry is not None and entry.get("target") in written else None
        if isinstance(named, list):
            return tuple(one for one in named if isinstance(one, str))
    return ()


def _symptom(lines: list[str]) -> ErrorLine | None:
    for line in reversed(lines):
        for code, pattern in _SYMPTOMS:
            if pattern.search(line):
                path = _QUOTED_PATH.search(line)
                return ErrorLine(ENTRIES[code], line.strip(), target=path[1] if path else "")
    return None
