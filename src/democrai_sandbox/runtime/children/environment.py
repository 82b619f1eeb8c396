"""Environment of a child: few variables of the host, those of the caller, and those of the guard.

Most variables of the host are not inherited, because they may contain tokens and passwords. ``HOME`` is the subject's
data folder, because programs look for credentials in the host's.
"""

from __future__ import annotations

from os import fsencode
from typing import TYPE_CHECKING

from democrai_sandbox.errors import EnvironmentDenied
from democrai_sandbox.guard.environment import environment_of
from democrai_sandbox.policy import InvalidInputError, Operation
from democrai_sandbox.policy.problems import pointer_to

from .remains import MARK
from .rights import denied

if TYPE_CHECKING:
    from collections.abc import Mapping

    from democrai_sandbox.guard.views import RawView
    from democrai_sandbox.policy import AccessRule

    from .rights import Rights

_INHERITED = frozenset({"PATH", "LANG", "LANGUAGE", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR"})
_INHERITED_PREFIX = "LC_"
_DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
_OWNED_PREFIX = "DEMOCRAI_"
_TEMPORARY = frozenset({"TMPDIR", "TEMP", "TMP"})

# These variables make a program run other code before its own.
_REFUSED_PREFIXES = ("LD_", "DYLD_", "PYTHON", "GIT_", "PERL5", "RUBY", "NODE_", "BASH_FUNC_", "MALLOC_", "GLIBC_")
_REFUSED = frozenset(
    {
        *("BASH_ENV", "ENV", "SHELLOPTS", "BASHOPTS", "PS4", "PROMPT_COMMAND", "IFS", "CDPATH", "ZDOTDIR"),
        *("GCONV_PATH", "LOCPATH", "NLSPATH", "RESOLV_HOST_CONF", "RES_OPTIONS", "LOCALDOMAIN", "HOSTALIASES"),
        *("GETCONF_DIR", "TZDIR", "PERLLIB", "PERL_UNICODE", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS"),
        *("CLASSPATH", "OPENSSL_CONF", "OPENSSL_ENGINES", "OPENSSL_MODULES", "SSLKEYLOGFILE", "LESSOPEN", "LESSCLOSE"),
        *("PAGER", "MANPAGER", "EDITOR", "VISUAL", "BROWSER", "GTK_MODULES", "QT_PLUGIN_PATH", "VIRTUAL_ENV"),
    }
)
# These only affect how Python reads and writes.
_HARMLESS = frozenset(
    {"PYTHONUNBUFFERED", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE"}
)
_MOST = 256
_LONGEST = 131_072


def base_environment(host: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that children inherit from the host."""
    kept = {name: value for name, value in host.items() if name in _INHERITED or name.startswith(_INHERITED_PREFIX)}
    return {"PATH": _DEFAULT_PATH, **kept}


def check_given(view: RawView | None, given: object, rights: Rights) -> dict[str, str]:
    """Return the caller's variables, or refuse them because of type, size or a reserved name."""
    if given is None:
        return {}
    if type(given) is not dict or len(given) > _MOST:
        raise InvalidInputError.of(f"expected an object of at most {_MOST} texts", pointer="/env")
    for name, value in given.items():
        _check_pair(name, value)
        if view is not None:
            _check_name(view, name, value, rights)
    return dict(given)


def child_environment(
    view: RawView | None,
    given: Mapping[str, str],
    approved: tuple[AccessRule, ...],
    *,
    base: Mapping[str, str],
    home: str,
    mark: str,
) -> dict[str, str]:
    """Return the complete environment. Variables of the guard come last, so that the caller cannot replace them."""
    made = {**base, "HOME": home, **given}
    if view is not None:
        # The subject can write the folder of the user's own Python packages.
        made["PYTHONNOUSERSITE"] = "1"
        made |= environment_of(view, approved)
    return {**made, MARK: mark}


def is_text(value: object, longest: int) -> bool:
    """Return whether a value is a string that a program can receive: without NUL, and encodable."""
    if type(value) is not str or "\0" in value or len(value) > longest:
        return False
    try:
        return len(fsencode(value)) <= longest
    except UnicodeEncodeError:
        return False


def _check_pair(name: object, value: object) -> None:
    if type(name) is not str or not name or "=" in name or not is_text(name, _LONGEST):
        raise InvalidInputError.of(f"{name!r} is not a valid variable name", pointer="/env")
    if not is_text(value, _LONGEST - len(name)):
        message = f"expected a text without NUL; name and value have at most {_LONGEST} bytes together"
        raise InvalidInputError.of(message, pointer=pointer_to("/env", name))


def _check_name(view: RawView, name: str, value: str, rights: Rights) -> None:
    # Case-insensitive, because some programs read their variables that way.
    folded = name.upper()
    owned = folded.startswith(_OWNED_PREFIX)
    if owned or folded in _REFUSED or (folded.startswith(_REFUSED_PREFIXES) and name not in _HARMLESS):
        raise denied(EnvironmentDenied, view, name)
    # A Python child may write to the temp folder it is given, also under the guard of its environment.
    if folded in _TEMPORARY and not rights.may(view, Operation.CREATE, value):
        raise denied(EnvironmentDenied, view, name)
