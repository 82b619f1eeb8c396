"""The subject: objects that act while C code looks at them, and the call. Compiled and run inside the guard.

The names of places and host objects (SECRET, INSIDE, HOST_FILE, ...) are among the globals.
"""

from __future__ import annotations

import os
import socket
import sys


def _try_secret():
    """Try to reach the secret; the guard refuses it wherever this runs."""
    for attempt in (lambda: os.stat(SECRET), lambda: os.close(os.open(SECRET, os.O_RDONLY))):
        try:
            attempt()
        except BaseException:
            pass


class Mischief:
    """An object that tries to reach the secret whenever C code calls one of its methods, also when it is removed."""

    def act(self, *args, **kwargs):
        _try_secret()
        return 0

    __call__ = __index__ = __int__ = __len__ = __hash__ = __del__ = __enter__ = __exit__ = act

    def __eq__(self, other):
        _try_secret()
        return True

    def __bool__(self):
        _try_secret()
        return False

    def __float__(self):
        _try_secret()
        return 0.5

    def __str__(self):
        _try_secret()
        return SECRET

    __fspath__ = __repr__ = __str__

    def __iter__(self):
        _try_secret()
        return iter((SECRET, HOST_FILE))

    def __getitem__(self, key):
        _try_secret()
        if isinstance(key, int) and key > 3:
            raise IndexError(key)
        return SECRET

    def fileno(self):
        _try_secret()
        return HOST_FILE

    def read(self, *args):
        _try_secret()
        return b""

    write = readline = readinto = read


class Like:
    """A path-like object."""

    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return self.path


class Turning:
    """A path-like object with another answer each time."""

    def __init__(self, first, then):
        self.answers = [then, first]

    def __fspath__(self):
        return self.answers.pop() if len(self.answers) > 1 else self.answers[0]


class Index:
    """An integer-like object."""

    def __init__(self, number):
        self.number = number

    def __index__(self):
        return self.number

    fileno = __int__ = __index__


class IndexTurning(Index):
    """An integer-like object with another answer each time."""

    def __init__(self, first, then):
        self.numbers = [then, first]

    def __index__(self):
        return self.numbers.pop() if len(self.numbers) > 1 else self.numbers[0]

    fileno = __int__ = __index__


def own_file():
    """Open a file below the granted folder."""
    return os.open(INSIDE, os.O_RDWR)


def own_socket():
    """Return a connected socket of the caller."""
    return socket.socketpair()[0]


def own_database():
    """Return a database in memory."""
    import sqlite3

    return sqlite3.connect(":memory:")


CODE = compile("0", "<oracle>", "exec")


def perform(window, target, instance_maker, makers, named):
    """Make the values and the call."""
    args = [make() for make in makers]
    named = {name: make() for name, make in named.items()}
    value = target.value
    if target.owner is None:
        mark(window)
        return value(*args, **named)
    instance = instance_maker() if instance_maker else None
    mark(window)
    if target.attribute:
        if args:
            return value.__set__(instance, *args)
        return value.__get__(instance, target.owner)
    if hasattr(type(value), "__get__"):
        value = value.__get__(instance, target.owner)
    return value(*args, **named)


def maker(source):
    """Return a function that makes the value of this source."""
    return eval(f"lambda: {source}", globals())
