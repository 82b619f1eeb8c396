"""The environment of a child: a little of the host's, what the caller adds, and what the guard says about it.

Nothing of the host's is handed on by default: tokens and passwords live there. ``HOME`` is the subject's own folder,
not the host's, where programs would look for credentials.
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

# By these a program is made to run other code than its own, before it does anything of its own.
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
# These only say how Python writes and reads.
_HARMLESS = frozenset(
    {"PYTHONUNBUFFERED", "PYTHONUTF8", "PYTHONIOENCODING", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE"}
)
_MOST = 256
_LONGEST = 131_072


def base_environment(host: Mapping[str, str]) -> dict[str, str]:
    """Return what children get of the host's environment."""
    kept = {name: value for name, value in host.items() if name in _INHERITED or name.startswith(_INHERITED_PREFIX)}
    return {"PATH": _DEFAULT_PATH, **kept}


def check_given(view: RawView | None, given: object, rights: Rights) -> dict[str, str]:
    """Return what the caller adds, or refuse it: by type, by size, and by names that are not the caller's to give."""
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
    """Return all of the environment. What the guard says comes last: nothing that was given can stand in for it."""
    made = {**base, "HOME": home, **given}
    if view is not None:
        # The folder that Python would take for the user's own packages is one that the subject writes.
        made["PYTHONNOUSERSITE"] = "1"
        made |= environment_of(view, approved)
    return {**made, MARK: mark}


def is_text(value: object, longest: int) -> bool:
    """Tell whether a value is a text that a program can be given: no NUL, nothing that the system cannot encode."""
    if type(value) is not str or "\0" in value or len(value) > longest:
        return False
    try:
        return len(fsencode(value)) <= longest
    except UnicodeEncodeError:
        return False


def _check_pair(name: object, value: object) -> None:
    if type(name) is not str or not name or "=" in name or not is_text(name, _LONGEST):
        raise InvalidInputError.of(f"no variable can be named {name!r}", pointer="/env")
    if not is_text(value, _LONGEST - len(name)):
        message = f"expected a text without NUL of at most {_LONGEST} bytes with its name"
        raise InvalidInputError.of(message, pointer=pointer_to("/env", name))


def _check_name(view: RawView, name: str, value: str, rights: Rights) -> None:
    # Compared without regard to case: some programs read their variables so.
    folded = name.upper()
    owned = folded.startswith(_OWNED_PREFIX)
    if owned or folded in _REFUSED or (folded.startswith(_REFUSED_PREFIXES) and name not in _HARMLESS):
        raise denied(EnvironmentDenied, view, name)
    # A Python child may write to where it is told that temporary files go, also under a guard of its environment.
    if folded in _TEMPORARY and not rights.may(view, Operation.CREATE, value):
        raise denied(EnvironmentDenied, view, name)
