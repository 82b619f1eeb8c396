"""Validators of single values: addresses, folders, subjects, URLs. Each error says what was expected."""

from __future__ import annotations

import os
import re
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from democrai_sandbox.kernel.egress.endpoints import NotMaterialised, endpoints_of
from democrai_sandbox.policy import (
    InvalidInputError,
    Problem,
    Subject,
    SubjectKind,
    nearest,
    normalise_path,
    parse_request_url,
    pointer_to,
)
from democrai_sandbox.policy.config_section import absolute_path, described, each
from democrai_sandbox.policy.text import exact_str, shown
from democrai_sandbox.runtime.extensions.settings import Isolation, RuntimeSettings

if TYPE_CHECKING:
    from collections.abc import Callable

LOCALHOST = "localhost"
_URL = re.compile(r"(https?)://[^/?#\\]+", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def path(value: object) -> str:
    """Validate the absolute path of a file or folder, which may not exist."""
    found = normalise_path(absolute_path(value))
    try:
        os.fsencode(found)
    except UnicodeEncodeError:
        raise ValueError(f"{shown(found)} is not a valid file name") from None
    return found


def folder(value: object) -> str:
    """Validate an existing, readable folder."""
    found = path(value)
    try:
        with os.scandir(found):
            return found
    except FileNotFoundError:
        raise ValueError(f"the folder {shown(found)} does not exist") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "the name is invalid"
        raise ValueError(f"the folder {shown(found)} cannot be read: {why}") from None


folders = each(folder, "folders")


def has_folder(file: str, to_be_made: str) -> str:
    """Return the path of a file if its folder exists or will be created by the host; raise otherwise."""
    parent = str(Path(file).parent)
    if parent != to_be_made:
        folder(parent)
    return file


def address(value: object) -> str:
    """Validate an IP address."""
    try:
        return str(ip_address(exact_str(value) or ""))
    except ValueError:
        raise ValueError(f"expected an address such as 127.0.0.1 or ::1, got {described(value)}") from None


def listening_address(value: object) -> str:
    """Validate an IP address to listen on, or ``localhost``."""
    return LOCALHOST if value == LOCALHOST else address(value)


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    if host == LOCALHOST:
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


addresses = each(address, "addresses")


def public_url(value: object) -> str:
    """Validate the public URL of the console: scheme, host, and optional port."""
    text = exact_str(value) or ""
    match = _URL.match(text)
    if match is None or "@" in text:
        raise ValueError(f"expected a URL such as https://sandbox.example.com, without a user, got {described(value)}")
    try:
        origin = parse_request_url(match.group())
    except InvalidInputError as error:
        why = "; ".join(problem.message for problem in error.problems)
        raise ValueError(f"expected a URL such as https://sandbox.example.com: {why}") from None
    if match.group() != text:
        message = "expected a scheme and a host with an optional port, without path, query and fragment"
        raise InvalidInputError.of(message, suggestion=origin.normalized)
    if origin.scheme != "https" and not is_loopback(origin.host):
        message = "passwords are sent over it: it must use https beyond this machine"
        raise InvalidInputError.of(message, suggestion=f"https{match.group()[len(match[1]) :]}")
    return origin.normalized


def manager(value: object) -> Subject:
    """Validate a module whose code may decide."""
    subject = _subject(value)
    if subject.kind is not SubjectKind.MODULE:
        raise ValueError(f"expected a module, as 'module:name', got {described(str(subject))}")
    return subject


managers = each(manager, "modules, as 'module:name'")


def import_name(value: object) -> str:
    """Validate the import name of a package."""
    name = exact_str(value) or ""
    if not (name.isidentifier() and name.isascii()):
        raise ValueError(f"expected the import name of a package, such as scipy, got {described(value)}")
    return name


import_names = each(import_name, "import names of packages")


def isolation(value: object) -> dict[str, str]:
    """Validate the isolation of subjects."""
    return _named(value, "with subjects, as 'module:reports: process'", _isolated)


def endpoints(value: object) -> dict[str, str]:
    """Validate remote services of the host, URLs by name."""
    return _named(value, "with URLs by name", _endpoint)


def _named(value: object, what: str, read: Callable[[str, object], str]) -> dict[str, str]:
    """Validate an object with free keys; raise with all problems of its entries."""
    if value is None:
        return {}
    if type(value) is not dict:
        raise ValueError(f"expected an object {what}, got {described(value)}")
    problems: list[Problem] = []
    found: dict[str, str] = {}
    for name, item in value.items():
        try:
            found[name] = read(name, item)
        except InvalidInputError as error:
            problems += [problem.moved(pointer_to("", name)) for problem in error.problems]
        except ValueError as error:
            problems.append(Problem(pointer_to("", name), str(error)))
    if problems:
        raise InvalidInputError(problems)
    return found


def _subject(value: object) -> Subject:
    text = exact_str(value)
    if text is None or "://" in text:
        raise ValueError(f"expected a subject as 'kind:name', got {described(value)}")
    try:
        return Subject.parse(text)
    except InvalidInputError as error:
        # The problems have pointers for kind and name, which a text does not have; the message is enough.
        raise InvalidInputError(Problem("", item.message, item.suggestion) for item in error.problems) from None


def _isolated(label: str, how: object) -> str:
    text = exact_str(how)
    if text not in tuple(Isolation):
        message = f"expected one of {', '.join(Isolation)}, got {described(how)}"
        raise InvalidInputError.of(message, suggestion=nearest(text or "", Isolation))
    subject = str(_subject(label))
    try:
        RuntimeSettings(data_dir="/", isolation={subject: text})
    except InvalidInputError as error:
        raise InvalidInputError(Problem("", item.message, item.suggestion) for item in error.problems) from None
    return text


def _endpoint(name: str, url: object) -> str:
    expected = "expected a URL with a host, and a port if the scheme has none, such as https://api.example.com"
    if not _NAME.fullmatch(name):
        raise ValueError("the name of an endpoint must have up to 64 letters, digits, '.', '_' and '-'")
    text = exact_str(url)
    if text is None:
        raise ValueError(f"{expected}, got {described(url)}")
    found = endpoints_of(text, name) if "://" in text else ()
    if isinstance(found, NotMaterialised) or not found:
        # Omit the reason if it might quote a part of a password.
        why = f": {found.why}" if isinstance(found, NotMaterialised) and "@" not in text else ""
        raise ValueError(expected + why)
    return text
