"""Environment variables: every way to change those that belong to the runtime (DEMOCRAI_*)."""

from __future__ import annotations

import os

from tests.guard.attacks.kit import (
    BROKEN,
    ENVIRONMENT,
    SANDBOX,
    Denied,
    Ground,
    Works,
    attack,
    attacks_of,
    raw_fork_exec,
)

NAME = "DEMOCRAI_SESSION_KEY"
FORGED = "forged"


def genuine(ground: Ground) -> None:
    os.environ[NAME] = "genuine"


def was_forged(ground: Ground) -> bool:
    """Whether a child that the host starts sees another value, or none."""
    return os.popen(f'printf %s "${NAME}"').read() != "genuine" or os.environ.get(NAME) != "genuine"


class Key(str):
    """A key that does not look like what it is."""

    __slots__ = ()

    def startswith(self, *_: object) -> bool:
        return False

    def upper(self) -> str:
        return "HARMLESS"

    def __str__(self) -> str:
        return "HARMLESS"


def another_encoding(ground: Ground) -> None:
    os.environ.encodekey = lambda key: NAME.encode()
    os.environ["HARMLESS"] = FORGED


def another_class(ground: Ground) -> None:
    environ = os._Environ({}, lambda key: NAME.encode(), os.fsdecode, os.fsencode, os.fsdecode)
    environ["HARMLESS"] = FORGED


def merged(ground: Ground) -> None:
    os.environ |= {NAME: FORGED}


attacks_of(
    {
        "setitem": lambda ground: os.environ.__setitem__(NAME, FORGED),
        "delitem": lambda ground: os.environ.__delitem__(NAME),
        "pop": lambda ground: os.environ.pop(NAME) and None,
        "update": lambda ground: os.environ.update({NAME: FORGED}),
        "merge": merged,
        "clear": lambda ground: os.environ.clear(),
        "environb_setitem": lambda ground: os.environb.__setitem__(NAME.encode(), FORGED.encode()),
        "environb_delitem": lambda ground: os.environb.__delitem__(NAME.encode()),
        "putenv": lambda ground: os.putenv(NAME, FORGED),
        "putenv_bytes": lambda ground: os.putenv(NAME.encode(), FORGED.encode()),
        "unsetenv": lambda ground: os.unsetenv(NAME),
        "unsetenv_bytes": lambda ground: os.unsetenv(NAME.encode()),
        "posix_putenv": lambda ground: __import__("posix").putenv(NAME, FORGED),
        "posix_unsetenv": lambda ground: __import__("posix").unsetenv(NAME),
        "key_subclass": lambda ground: os.environ.__setitem__(Key(NAME), FORGED),
        "putenv_key_subclass": lambda ground: os.putenv(Key(NAME), FORGED),
        "another_encoding": another_encoding,
        "another_environ": another_class,
        "mutable_mapping": lambda ground: __import__("collections").abc.MutableMapping.update(
            os.environ, {NAME: FORGED}
        ),
    },
    "a variable of the runtime is changed: {}",
    expect=ENVIRONMENT,
    prepare=genuine,
    after=was_forged,
)
attacks_of(
    {
        "new_name": lambda ground: os.environ.setdefault("DEMOCRAI_ACCESS", FORGED),
        "putenv_new_name": lambda ground: os.putenv("DEMOCRAI_ACCESS", FORGED),
        "short_name": lambda ground: os.putenv("DEMOCRAI_", FORGED),
        "long_name": lambda ground: os.putenv("DEMOCRAI_ANYTHING_AT_ALL", FORGED),
    },
    "a new variable of the runtime is made: {}",
    expect=ENVIRONMENT,
    after=lambda ground: FORGED in os.popen("env | grep DEMOCRAI_").read(),
)


def capture(ground: Ground) -> None:
    import posix

    ground.held.putenv, ground.held.unsetenv = posix.putenv, posix.unsetenv
    ground.held.setitem = os.environ.__setitem__


attacks_of(
    {
        "putenv": lambda ground: ground.held.putenv(NAME, FORGED),
        "unsetenv": lambda ground: ground.held.unsetenv(NAME),
        "setitem": lambda ground: ground.held.setitem(NAME, FORGED),
    },
    "a reference from before the guard is called: {}",
    expect=ENVIRONMENT,
    group="captured_",
    early=capture,
    prepare=genuine,
    after=was_forged,
)


class Lying(bytes):
    """A key that is another one to a dictionary than to the C library."""

    __slots__ = ()

    def __hash__(self) -> int:
        return hash(NAME.encode())

    def __eq__(self, other: object) -> bool:
        return True


class LyingText(str):
    __slots__ = ()

    def encode(self, *_: object) -> bytes:  # type: ignore[override]
        return Lying(b"HARMLESS")


def replaced(ground: Ground) -> None:
    os.environ = {NAME: FORGED}


def reloaded(ground: Ground) -> None:
    """A new environment is made of the variables that the interpreter found."""
    import importlib
    import posix

    posix.environ[NAME.encode()] = FORGED.encode()
    importlib.reload(os)


def another_type(ground: Ground) -> None:
    class Forged(type(os.environ)):
        def __getitem__(self, key: str) -> str:
            return FORGED

    object.__setattr__(os.environ, "__class__", Forged)


def another_method(ground: Ground) -> None:
    type(os.environ).__getitem__ = lambda self, key: FORGED


def another_base_method(ground: Ground) -> None:
    type(os.environ).__mro__[2].get = lambda self, key, default=None: FORGED


def shows_another(ground: Ground) -> bool:
    try:
        return os.environ.get(NAME) != "genuine" or dict(os.environ).get(NAME) != "genuine"
    except AttributeError:
        return True


FORGING = {
    "data": lambda ground: os.environ._data.__setitem__(NAME.encode(), FORGED.encode()),
    "data_dict_method": lambda ground: dict.__setitem__(os.environ._data, NAME.encode(), FORGED.encode()),
    "data_mapping_method": lambda ground: __import__("collections").abc.MutableMapping.update(
        os.environ._data, {NAME.encode(): FORGED.encode()}
    ),
    "data_clear": lambda ground: os.environ._data.clear(),
    "data_of_bytes": lambda ground: os.environb._data.clear(),
    "data_replaced": lambda ground: setattr(os.environ, "_data", {NAME.encode(): FORGED.encode()}),
    "data_replaced_as_object": lambda ground: object.__setattr__(os.environ, "_data", {}),
    "vars": lambda ground: vars(os.environ).update(_data={NAME.encode(): FORGED.encode()}),
    "vars_data": lambda ground: vars(os.environ)["_data"].clear(),
    "vars_replaced": lambda ground: setattr(os.environ, "__dict__", {"_data": {}}),
    "deleted": lambda ground: delattr(os.environ, "_data"),
    "reduced": lambda ground: os.environ.__reduce_ex__(2)[2]["_data"].clear(),
    "decoding": lambda ground: setattr(os.environ, "decodevalue", lambda value: FORGED),
    "lying_bytes": lambda ground: os.environb.__setitem__(Lying(b"HARMLESS"), FORGED.encode()),
    "lying_text": lambda ground: os.environ.__setitem__(LyingText("HARMLESS"), FORGED),
    "replaced": replaced,
    "replaced_in_vars": lambda ground: vars(os).__setitem__("environ", {NAME: FORGED}),
    "replaced_in_globals": lambda ground: os.getenv.__globals__.__setitem__("environ", {NAME: FORGED}),
    "replaced_in_frame": lambda ground: os.walk(".").gi_frame.f_globals.__setitem__("environ", {NAME: FORGED}),
    "replaced_by_exec": lambda ground: exec("environ = {'%s': '%s'}" % (NAME, FORGED), vars(os)),
    "reloaded": reloaded,
    "another_type": another_type,
    "another_method": another_method,
    "another_base_method": another_base_method,
}
attacks_of(
    FORGING,
    "os.environ shows the host another value: {}",
    expect=Denied(("sandbox_",), or_nothing=True, or_errors=("AttributeError", "TypeError")),
    group="shown_",
    prepare=genuine,
    after=shows_another,
)


@attack("variables of one's own are set, copied and removed", expect=Works())
def own_variables(ground: Ground) -> bool:
    import copy

    for name in ("OWN", "OWN_B"):
        os.environ[name] = "1"
    os.environb[b"OWN_C"] = b"2"
    assert (os.environ["OWN"], os.environb[b"OWN_B"], os.getenv("OWN_C")) == ("1", b"1", "2")
    assert {**os.environ}["OWN"] == copy.copy(os.environ)["OWN"] == os.environ.copy()["OWN"] == "1"
    assert "OWN" in repr(os.environ) and "OWN" in os.environ and "OWN" in list(os.environ)
    assert os.environ.pop("OWN") == "1" and os.environ.pop("OWN", None) is None
    del os.environ["OWN_B"], os.environb[b"OWN_C"]
    return not {"OWN", "OWN_B", "OWN_C"} & set(os.environ) and copy.deepcopy(os.environ)["HOME"] == os.environ["HOME"]


def children(ground: Ground) -> dict[str, object]:
    return {"allow_subprocess": True}


class LyingMapping(dict):
    """A dictionary whose methods tell something else than what is stored in it."""

    def __init__(self) -> None:
        super().__init__(HARMLESS="1")

    def keys(self):
        return [NAME]

    def values(self):
        return [FORGED]

    def items(self):
        return [(NAME, FORGED)]


def printed(ground: Ground, run) -> bool:
    """Whether a child given a forged variable sees it; `run` gets the shell command."""
    run(f'printf %s "${NAME}" > {ground.inside}/seen')
    return os.path.exists(f"{ground.inside}/seen") and open(f"{ground.inside}/seen").read() == FORGED


def spawn(environment):
    return lambda script: os.waitpid(os.posix_spawn("/bin/sh", ["sh", "-c", script], environment), 0)


def popen(environment):
    import subprocess

    return lambda script: subprocess.run(["/bin/sh", "-c", script], env=environment, check=True)


def fork_exec(pairs: list[bytes]):
    import _posixsubprocess

    return lambda script: raw_fork_exec(_posixsubprocess.fork_exec, ["/bin/sh", "-c", script], pairs)


attacks_of(
    {
        "Popen": lambda ground: printed(ground, popen({NAME: FORGED})),
        "Popen_bytes": lambda ground: printed(ground, popen({NAME.encode(): FORGED.encode()})),
        "Popen_key_subclass": lambda ground: printed(ground, popen({Key(NAME): FORGED})),
        "Popen_mapping": lambda ground: printed(ground, popen(LyingMapping())),
        "posix_spawn": lambda ground: printed(ground, spawn({NAME: FORGED})),
        "posix_spawn_bytes": lambda ground: printed(ground, spawn({NAME.encode(): FORGED.encode()})),
        "fork_exec": lambda ground: printed(ground, fork_exec([f"{NAME}={FORGED}".encode()])),
    },
    "a child that may be started is given a forged variable: {}",
    expect=ENVIRONMENT,
    group="child_",
    policy=children,
)


@attack("spawnve, whose child refuses by itself, gives a forged variable", expect=ENVIRONMENT.quietly, policy=children)
def child_spawnve(ground: Ground) -> bool:
    return printed(ground, lambda script: os.spawnve(os.P_WAIT, "/bin/sh", ["sh", "-c", script], {NAME: FORGED}))


@attack(
    "the functions that word a child's environment are replaced",
    expect=BROKEN,
    policy=children,
    unguarded="without a guard there is no child environment to forge",
)
def child_wording(ground: Ground) -> object:
    import sys

    module = sys.modules.get("democrai_sandbox.guard.contexts")
    for name in ("rules_to_json", "chain_to_list", "RawView", "json", "ACCESS", "SUBJECT", "IDENTITY"):
        if module is not None and callable(getattr(module, name, None)):
            setattr(module, name, lambda *_: FORGED)
    run = popen(None)
    run(f'printf "%s" "$DEMOCRAI_ACCESS" > {ground.inside}/seen')
    return open(f"{ground.inside}/seen").read() == FORGED


@attack("asyncio gives a child a forged variable", expect=ENVIRONMENT, policy=children)
async def child_asyncio(ground: Ground) -> bool:
    import asyncio

    script = f'printf %s "${NAME}" > {ground.inside}/seen'
    process = await asyncio.create_subprocess_shell(script, env={NAME: FORGED})
    await process.wait()
    return open(f"{ground.inside}/seen").read() == FORGED


@attack("the process is replaced by a program with a forged variable", expect=SANDBOX, policy=children)
def exec_forged(ground: Ground) -> None:
    script = 'test "$%s" = %s && echo \'{"verdict": "escaped", "error_type": null, "code": null}\'' % (NAME, FORGED)
    os.execve("/bin/sh", ["sh", "-c", script], {NAME: FORGED})
