"""Further interpreters in the same process."""

from __future__ import annotations

from tests.guard.attacks.kit import SANDBOX, Ground, attack

SCRIPT = "open({inside!r} + '/loot.txt', 'w').write(open({outside!r}).read())"


def script(ground: Ground) -> str:
    return SCRIPT.format(inside=ground.inside, outside=ground.outside)


def taken(ground: Ground) -> object:
    return open(f"{ground.inside}/loot.txt").read()


@attack("another interpreter is made and used", expect=SANDBOX, until=(3, 12))
def interpreter_old(ground: Ground) -> object:
    import _xxsubinterpreters as interpreters

    interpreters.run_string(interpreters.create(), script(ground))
    return taken(ground)


def hold_interpreter_old(ground: Ground) -> None:
    import _xxsubinterpreters as interpreters

    ground.held.interpreter = interpreters.create()


@attack("an interpreter that the host made is used", expect=SANDBOX, until=(3, 12), prepare=hold_interpreter_old)
def interpreter_of_the_host_old(ground: Ground) -> object:
    import _xxsubinterpreters as interpreters

    interpreters.run_string(ground.held.interpreter, script(ground))
    return taken(ground)


@attack("another interpreter is made and used", expect=SANDBOX, since=(3, 13))
def interpreter_new(ground: Ground) -> object:
    import _interpreters

    _interpreters.exec(_interpreters.create(), script(ground))
    return taken(ground)


def hold_interpreter_new(ground: Ground) -> None:
    import _interpreters

    ground.held.interpreter = _interpreters.create()


@attack("an interpreter that the host made is used", expect=SANDBOX, since=(3, 13), prepare=hold_interpreter_new)
def interpreter_of_the_host_new(ground: Ground) -> object:
    import _interpreters

    _interpreters.run_string(ground.held.interpreter, script(ground))
    return taken(ground)


@attack(
    "the interpreter's test module makes an interpreter and runs code in it",
    expect=SANDBOX.quietly.or_raises("InterpreterError"),
    since=(3, 13),
    needs=("_testinternalcapi",),
)
def interpreter_by_test_module(ground: Ground) -> object:
    import _testinternalcapi

    _testinternalcapi.exec_interpreter(_testinternalcapi.create_interpreter(), script(ground))
    return taken(ground)


@attack(
    "the queue and channel modules of interpreters carry a callable over",
    expect=SANDBOX.quietly.or_raises(""),
    since=(3, 13),
    unguarded="nothing runs by itself there",
)
def interpreter_channels(ground: Ground) -> None:
    import _interpreters

    _interpreters.call(_interpreters.create(), exec, (script(ground),))
