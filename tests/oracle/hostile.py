"""Hostile arguments: values that lead outside the policy, and objects that act while C code looks at them.

Each value has a name, which is Python source in a reproduction; `reproduction.py` explains the names. Values are made
inside the guard, freshly for each call.
"""

from __future__ import annotations

import random
import re

# The names of the values by kind. A parameter that says what it is gets mostly values of that kind.
KINDS = {
    "path": (
        "SECRET SECRET_BYTES Like(SECRET) OUTSIDE INSIDE INSIDE_FOLDER MISSING DOTTED LINK Turning(INSIDE,SECRET) "
        "b'' '' 'relative' PLANTED FIFO"
    ).split(),
    "number": (
        "HOST_FILE HOST_FOLDER HOST_SOCKET HOST_PIPE 2**32+HOST_FILE -2**32+HOST_FILE 2**32+HOST_PIPE 2**31 2**63 "
        "2**64 -1 0 1 3 own_file() Index(HOST_FILE) IndexTurning(own_file(),HOST_FILE) True -2**31 1.5"
    ).split(),
    "process": "VICTIM -VICTIM 2**32+VICTIM Index(VICTIM) PARENT".split(),
    "signal": "9 15 10 0".split(),
    "address": (
        "('127.0.0.1',PORT) ('127.0.0.1',UDP_PORT) ('localhost',PORT) ('::1',PORT,0,0) UNIX_OUTSIDE b'\\0oracle' "
        "('127.0.0.1',2**16+PORT) (b'127.0.0.1',PORT)"
    ).split(),
    "buffer": "b'data' bytearray(64) memoryview(bytearray(64)) [b'data'] [bytearray(8)] 'text' Mischief()".split(),
    "callable": "Mischief() print len Mischief.act".split(),
    "other": (
        "None () [] {} Mischief() object() Mischief [SECRET] (SECRET,) {'a':SECRET} own_socket() own_database() "
        "iter([SECRET]) sys open int type 'utf-8' 'rb' 'w' 'r' CODE"
    ).split(),
}
NAMES = {  # parts of parameter names, and the kind of value that fits
    "path": "path src dst file name dir database filename target module tree prefix root cwd program origin spec",
    "number": "fd fileno fildes descriptor length size offset count flags how n index mode request op timeout whence",
    "process": "pid pgid gid uid id who",
    "signal": "sig signal signum signalnum",
    "address": "address addr host port sockaddr",
    "buffer": "buf buffer data bytes string s text sql",
    "callable": "func function callback handler hook key callable default factory",
}
# The interpreter calls these with at most one argument.
OPERATORS = {
    f"__{name}__"
    for name in ("repr", "str", "hash", "len", "iter", "next", "eq", "ne", "lt", "le", "gt", "ge", "bool", "int")
    + ("float", "index", "neg", "pos")
}
ALL = [name for names in KINDS.values() for name in names]


def kind_of(parameter):
    """Return the kind of value that a parameter's name asks for."""
    words = set(re.split(r"[_\d]+", parameter.lower())) | {parameter.lower()}
    for kind, names in NAMES.items():
        if words & set(names.split()):
            return kind
    return None


def parameters(value):
    """Return the positional parameters that a text signature names, None without one, and the keywords."""
    text = getattr(value, "__text_signature__", None)
    if not text:
        return None, []
    inside = text.strip("()")
    names = [part.strip() for part in re.split(r",\s*(?![^(\[]*[)\]])", inside)]
    positional, keywords, only_keywords = [], [], False
    for part in names:
        name = part.partition("=")[0].strip()
        if name == "*":
            only_keywords = True
        elif name == "/":
            keywords.clear()
        elif name and not name.startswith(("$", "*")):
            keywords.append(name)
            if not only_keywords:
                positional.append(name)
    return positional, [name for name in keywords if name.isidentifier()]


def lists(target, calls):
    """Yield argument lists for a target: (positional names, keyword names); the same ones in every run."""
    chance = random.Random(target.name)
    known, keywords = parameters(target.value)
    yield (), {}
    for name in ALL:
        yield (name,), {}
    kinds = [kind_of(name) for name in known or ()]
    if target.name.rpartition(".")[2] in OPERATORS:
        return
    for _ in range(calls):
        count = (
            chance.choice((2, 2, 3, 3, 4, 5, 6))
            if known is None
            else min(6, max(1, len(known) - chance.choice((0, 0, 1))))
        )
        yield tuple(_pick(chance, kinds[i] if i < len(kinds) else None) for i in range(count)), {}
    for _ in range(calls // 3 if keywords else 0):
        named = chance.sample(keywords, chance.randint(1, min(4, len(keywords))))
        taken = [i for i, name in enumerate(known) if name not in named]
        first = tuple(_pick(chance, kinds[i]) for i in taken) if taken == list(range(len(taken))) else ()
        yield first, {name: _pick(chance, kind_of(name)) for name in named}


def _pick(chance, kind):
    if kind is not None and chance.random() < 0.8:
        return chance.choice(KINDS[kind])
    return chance.choice(KINDS[chance.choice(tuple(KINDS))])
