"""Database URLs: a SQLite file or a PostgreSQL server."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from democrai_sandbox.policy import InvalidInputError, nearest

SQLITE = "sqlite"
POSTGRESQL = "postgresql"
_DRIVERS = MappingProxyType(
    {SQLITE: SQLITE, POSTGRESQL: "postgresql+psycopg", "postgresql+psycopg": "postgresql+psycopg"}
)
_POINTER = "/url"


def parse_url(text: str, *, must_exist: bool = False, needs_folder: bool = True) -> URL:
    """Return the URL with its driver, or reject it. Errors do not contain the URL, which may include a password.

    ``must_exist`` rejects a missing file; a server is not contacted. Without ``needs_folder``, the folder of the file
    may still be missing.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError, TypeError, AttributeError):
        message = "expected a database URL, such as sqlite:////var/lib/app/access.db or postgresql://user@host/name"
        raise InvalidInputError.of(message, pointer=_POINTER) from None
    driver = _DRIVERS.get(url.drivername)
    if driver is None:
        guess = nearest(url.drivername, (SQLITE, POSTGRESQL))
        message = f"the database {url.drivername!r} is not supported; use sqlite or postgresql"
        raise InvalidInputError.of(message, pointer=_POINTER, suggestion=guess)
    if driver != SQLITE:
        return url.set(drivername=driver)
    _check_file(url, must_exist=must_exist)
    if needs_folder:
        _check_folder(Path(str(url.database)).parent)
    return url


def shown_url(url: URL) -> str:
    """Return the URL in its original form, without secrets."""
    query = {name: "***" if is_secret(name) else value for name, value in url.query.items()}
    return url.set(drivername=url.get_backend_name(), query=query).render_as_string(hide_password=True)


def is_secret(option: str) -> bool:
    """Return whether an option of a URL contains a secret: ``password``, ``sslpassword``, ``oauth_client_secret``."""
    return any(word in option.lower() for word in ("password", "secret"))


def _check_file(url: URL, *, must_exist: bool) -> None:
    if url.host or url.username or url.password or url.port:
        message = "a SQLite URL names a local file: three slashes and a path, or four for an absolute path"
        raise InvalidInputError.of(message, pointer=_POINTER)
    if url.query:
        raise InvalidInputError.of("a SQLite URL cannot have options", pointer=_POINTER)
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise InvalidInputError.of(
            "a SQLite database needs a file, because decisions must outlive the process", pointer=_POINTER
        )
    if must_exist and not Path(url.database).is_file():
        raise InvalidInputError.of(f"the database {url.database!r} does not exist", pointer=_POINTER)


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise InvalidInputError.of(f"the folder {str(folder)!r} for the database does not exist", pointer=_POINTER)
