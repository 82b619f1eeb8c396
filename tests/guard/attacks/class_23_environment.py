"""Class 23, the environment: DEMOCRAI_* belongs to the runtime, through every door."""

from __future__ import annotations

import os

from tests.guard.attacks.kit import BROKEN, ENVIRONMENT, SANDBOX, Fruitless, Ground, attack, attacks_of, raw_fork_exec

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


@attack(
    "os.environ is replaced; children the host starts see the environment of the process",
    expect=Fruitless("the C environment is unchanged, and a child's DEMOCRAI_* come from the guard's state"),
    prepare=genuine,
    after=lambda ground: os.popen(f'printf %s "${NAME}"').read() != "genuine",
    unguarded="os.popen never looks at os.environ",
)
def environ_replaced(ground: Ground) -> None:
    os.environ = {NAME: FORGED}


@attack(
    "the dictionary behind os.environ is changed and a child's environment is asked for",
    expect=Fruitless("a child's DEMOCRAI_* are built from the guard's state, never from os.environ"),
    prepare=genuine,
    unguarded="without a guard there is no child environment to forge",
)
def environ_data(ground: Ground) -> object:
    from democrai_sandbox import child_environment

    os.environ._data[NAME.encode()] = FORGED.encode()
    return FORGED in child_environment().values() and ground.SECRET


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

    module = sys.modules.get("democrai_sandbox.guard.environment")
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
