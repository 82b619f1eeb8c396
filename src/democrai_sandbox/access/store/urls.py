"""Which database a URL means: a file of SQLite, or a PostgreSQL server."""

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
    """Return the URL with its driver, or refuse it. Its text is not repeated in the error: it may hold a password.

    ``must_exist`` refuses a file that is not there; whether a server is there shows when it is asked. Without
    ``needs_folder`` the folder of the file may still have to be made.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError, TypeError, AttributeError):
        message = (
            "expected the URL of a database, such as sqlite:////var/lib/app/access.db or postgresql://user@host/name"
        )
        raise InvalidInputError.of(message, pointer=_POINTER) from None
    driver = _DRIVERS.get(url.drivername)
    if driver is None:
        guess = nearest(url.drivername, (SQLITE, POSTGRESQL))
        message = f"the database {url.drivername!r} is not supported; there are sqlite and postgresql"
        raise InvalidInputError.of(message, pointer=_POINTER, suggestion=guess)
    if driver != SQLITE:
        return url.set(drivername=driver)
    _check_file(url, must_exist=must_exist)
    if needs_folder:
        _check_folder(Path(str(url.database)).parent)
    return url


def shown_url(url: URL) -> str:
    """Return the URL without anything secret, in the form in which it was given."""
    query = {name: "***" if is_secret(name) else value for name, value in url.query.items()}
    return url.set(drivername=url.get_backend_name(), query=query).render_as_string(hide_password=True)


def is_secret(option: str) -> bool:
    """Whether an option of a URL holds a secret: ``password``, ``sslpassword``, ``oauth_client_secret``."""
    return any(word in option.lower() for word in ("password", "secret"))


def _check_file(url: URL, *, must_exist: bool) -> None:
    if url.host or url.username or url.password or url.port:
        message = "a SQLite database is a file of this machine: three slashes and a path, four for an absolute one"
        raise InvalidInputError.of(message, pointer=_POINTER)
    if url.query:
        raise InvalidInputError.of("the URL of a SQLite database takes no options", pointer=_POINTER)
    if not url.database or url.database == ":memory:" or url.database.startswith("file:"):
        raise InvalidInputError.of(
            "a SQLite database needs a file: decisions have to outlive the process", pointer=_POINTER
        )
    if must_exist and not Path(url.database).is_file():
        raise InvalidInputError.of(f"there is no database {url.database!r}", pointer=_POINTER)


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise InvalidInputError.of(f"there is no folder {str(folder)!r} for the database", pointer=_POINTER)
