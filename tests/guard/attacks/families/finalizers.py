"""Deferred execution in finalizers, which run under the guard in which the object was created."""

from __future__ import annotations

from tests.guard.attacks.kit import FILES, Ground, attack, attacks_of


def bomb(ground: Ground) -> object:
    """An object that steals when it dies, of a class that the subject makes under its guard."""

    class Bomb:
        def __del__(self) -> None:
            ground.steal()

    return Bomb()


def drop(ground: Ground) -> None:
    import gc

    ground.held.bomb = None
    del ground.held.bomb
    gc.collect()


def set_bomb(ground: Ground) -> None:
    ground.held.bomb = bomb(ground)


def set_cycle(ground: Ground) -> None:
    first, second = bomb(ground), bomb(ground)
    first.other, second.other = second, first
    ground.held.bomb = first


def set_weak_callback(ground: Ground) -> None:
    import weakref

    class Thing:
        pass

    ground.held.bomb = Thing()
    ground.held.weak = weakref.ref(ground.held.bomb, lambda _: ground.steal())


def set_finalizer(ground: Ground) -> None:
    import weakref

    class Thing:
        pass

    ground.held.bomb = Thing()
    weakref.finalize(ground.held.bomb, lambda: ground.steal())


def set_late_method(ground: Ground) -> None:
    """The class gets its method after it was made."""

    class Late:
        pass

    Late.__del__ = lambda self: ground.steal()
    ground.held.bomb = Late()


def set_made_type(ground: Ground) -> None:
    ground.held.bomb = type("Made", (), {"__del__": lambda self: ground.steal()})()


def set_metaclass(ground: Ground) -> None:
    class Meta(type):
        def __new__(cls, name: str, bases: tuple, space: dict):
            made = super().__new__(cls, name, bases, space)
            type.__setattr__(made, "__del__", lambda self: ground.steal())
            return made

    class Thing(metaclass=Meta):
        pass

    ground.held.bomb = Thing()


def set_changed_class(ground: Ground) -> None:
    class Plain:
        pass

    thing = Plain()
    thing.__class__ = type(bomb(ground))
    ground.held.bomb = thing


def set_close(ground: Ground) -> None:
    """The base class's finaliser, in C, calls the method `close` of the subject's class."""
    import io

    class Stream(io.RawIOBase):
        def close(self) -> None:
            ground.steal()

    ground.held.bomb = Stream()


def set_inherited(ground: Ground) -> None:
    """The finaliser is the library's, the method it calls is the subject's."""
    import zipfile

    class Archive(zipfile.ZipFile):
        def __init__(self) -> None:
            pass

        def close(self) -> None:
            ground.steal()

    ground.held.bomb = Archive()


def set_weak_method(ground: Ground) -> None:
    import weakref

    ground.held.bomb = bomb(ground)
    ground.held.weak = weakref.WeakValueDictionary(x=ground.held.bomb)


def set_local(ground: Ground) -> None:
    """A thread's local variables die with it."""
    import threading

    local = threading.local()
    local.value = bomb(ground)
    ground.held.bomb = local


def set_exception(ground: Ground) -> None:
    """A traceback keeps the frame, which keeps the bomb."""

    def fail() -> None:
        kept = bomb(ground)
        raise ValueError(kept is None)

    try:
        fail()
    except ValueError as error:
        ground.held.bomb = error


attacks_of(
    {
        "del": set_bomb,
        "del_in_cycle": set_cycle,
        "del_set_later": set_late_method,
        "del_of_made_type": set_made_type,
        "del_by_metaclass": set_metaclass,
        "del_by_class_change": set_changed_class,
        "close_of_stream": set_close,
        "inherited_del": set_inherited,
        "weak_callback": set_weak_callback,
        "finalizer": set_finalizer,
        "weak_dictionary": set_weak_method,
        "thread_local": set_local,
        "traceback": set_exception,
    },
    "an object that the host drops later runs the subject's code: {}",
    expect=FILES,
    group="finalised_",
    after=drop,
)


@attack("an object dies while the guard still stands", expect=FILES)
def finalised_inside(ground: Ground) -> None:
    import gc

    ground.held.bomb = bomb(ground)
    ground.held.bomb = None
    gc.collect()
