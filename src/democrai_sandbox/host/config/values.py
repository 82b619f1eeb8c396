"""What reads single values: addresses, folders, subjects, URLs. Each refuses with what it expected instead."""

from __future__ import annotations

import os
import re
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

from democrai_sandbox.kernel.egress.endpoints import endpoints_of
from democrai_sandbox.kernel.egress.interface import NotMaterialised
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
from democrai_sandbox.policy.sections import absolute_path, described, each
from democrai_sandbox.policy.text import exact_str, shown
from democrai_sandbox.runtime.settings import Isolation, RuntimeSettings

if TYPE_CHECKING:
    from collections.abc import Callable

LOCALHOST = "localhost"
_URL = re.compile(r"(https?)://[^/?#\\]+", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def path(value: object) -> str:
    """Read the absolute path of a file or folder, which need not be there."""
    found = normalise_path(absolute_path(value))
    try:
        os.fsencode(found)
    except UnicodeEncodeError:
        raise ValueError(f"no file can be named {shown(found)}") from None
    return found


def folder(value: object) -> str:
    """Read a folder that is there and can be read."""
    found = path(value)
    try:
        with os.scandir(found):
            return found
    except FileNotFoundError:
        raise ValueError(f"there is no folder {shown(found)}") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "nothing can be named so"
        raise ValueError(f"the folder {shown(found)} cannot be read: {why}") from None


folders = each(folder, "folders")


def has_folder(file: str, to_be_made: str) -> str:
    """Return the path of a file again, if its folder is there or is the one that the host makes; else refuse it."""
    parent = str(Path(file).parent)
    if parent != to_be_made:
        folder(parent)
    return file


def address(value: object) -> str:
    """Read an address of a machine."""
    try:
        return str(ip_address(exact_str(value) or ""))
    except ValueError:
        raise ValueError(f"expected an address such as 127.0.0.1 or ::1, got {described(value)}") from None


def listening_address(value: object) -> str:
    """Read an address to listen at, or ``localhost``."""
    return LOCALHOST if value == LOCALHOST else address(value)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == LOCALHOST:
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


addresses = each(address, "addresses")


def public_url(value: object) -> str:
    """Read where people find the console: scheme and host, perhaps a port, and nothing after it."""
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
        message = "expected a scheme and a host, perhaps a port, and neither path, query nor fragment"
        raise InvalidInputError.of(message, suggestion=origin.normalized)
    if origin.scheme != "https" and not is_loopback(origin.host):
        message = "passwords travel over it: beyond this machine it has to be https"
        raise InvalidInputError.of(message, suggestion=f"https{match.group()[len(match[1]) :]}")
    return origin.normalized


def manager(value: object) -> Subject:
    """Read the module whose code may decide."""
    subject = _subject(value)
    if subject.kind is not SubjectKind.MODULE:
        raise ValueError(f"expected a module, as 'module:name', got {described(str(subject))}")
    return subject


managers = each(manager, "modules, as 'module:name'")


def import_name(value: object) -> str:
    """Read the name that a package is imported by."""
    name = exact_str(value) or ""
    if not (name.isidentifier() and name.isascii()):
        raise ValueError(f"expected the name that a package is imported by, such as scipy, got {described(value)}")
    return name


import_names = each(import_name, "names that packages are imported by")


def isolation(value: object) -> dict[str, str]:
    """Read how subjects are isolated, by subject."""
    return _named(value, "of subjects, as 'module:reports: process'", _isolated)


def endpoints(value: object) -> dict[str, str]:
    """Read remote services of the host itself, URLs by name."""
    return _named(value, "of URLs by name", _endpoint)


def _named(value: object, what: str, read: Callable[[str, object], str]) -> dict[str, str]:
    """Read an object in which any key may stand; tell all that is wrong with its entries."""
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
        # What is wrong with kind or name is said by the message: the text has no places of its own.
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
    expected = "expected a URL with a host and a port, if the scheme has none, such as https://api.example.com"
    if not _NAME.fullmatch(name):
        raise ValueError("an endpoint is named with up to 64 letters, digits, '.', '_' and '-'")
    text = exact_str(url)
    if text is None:
        raise ValueError(f"{expected}, got {described(url)}")
    found = endpoints_of(text, name) if "://" in text else ()
    if isinstance(found, NotMaterialised) or not found:
        # Not what is wrong with it, where that might quote a part of a password.
        why = f": {found.why}" if isinstance(found, NotMaterialised) and "@" not in text else ""
        raise ValueError(expected + why)
    return text
