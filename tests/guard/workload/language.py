"""Ordinary work with the language and its standard library, without files."""

from __future__ import annotations

import os
import sys


def dataclasses_and_enums(w):
    import dataclasses
    import enum

    @dataclasses.dataclass(frozen=True, slots=True)
    class Point:
        x: int
        y: int = 0

    class Colour(enum.StrEnum):
        RED = enum.auto()

    assert dataclasses.replace(Point(1), y=2) == Point(1, 2)
    assert Colour("red") is Colour.RED
    assert enum.Flag("F", "A B").A


def named_tuples(w):
    import collections
    import typing

    Pair = collections.namedtuple("Pair", "a b", defaults=[1])
    assert Pair(0) == (0, 1)

    class Typed(typing.NamedTuple):
        a: int

    assert Typed(1)._asdict() == {"a": 1}


def copying(w):
    import copy

    value = {"a": [1, {2, 3}, (4,)]}
    assert copy.deepcopy(value) == value
    assert copy.copy(value)["a"] is value["a"]


def functions(w):
    import functools

    @functools.lru_cache
    def square(x):
        return x * x

    @functools.singledispatch
    def kind(x):
        return "thing"

    kind.register(int, lambda x: "number")
    assert square(4) == 16
    assert kind(1) == "number"
    assert functools.partial(int, base=2)("101") == 5
    assert functools.wraps(square)(lambda: 0).__name__ == "square"


def function_attributes(w):
    def function(a, b=1):
        return a + b

    function.__defaults__ = (2,)
    function.__doc__ = "text"
    function.note = "x"
    assert function(1) == 3
    code = function.__code__.replace(co_name="other")
    assert code.co_name == "other"


def inspection(w):
    import inspect
    import json

    assert str(inspect.signature(json.dumps)).startswith("(obj")
    assert "def dumps" in inspect.getsource(json.dumps)
    assert inspect.currentframe().f_code.co_name == "inspection"
    assert inspect.stack()[0].function == "inspection"
    assert inspect.getmodule(json.dumps) is json
    assert inspect.getdoc(json)
    assert sys._getframe().f_locals["w"] is w


def tracebacks(w):
    import io
    import linecache
    import traceback

    try:
        raise KeyError("x")
    except KeyError as error:
        text = "".join(traceback.format_exception(error))
    assert "KeyError: 'x'" in text
    linecache.checkcache()
    assert "import" in "".join(linecache.getlines(os.__file__))
    traceback.print_stack(file=io.StringIO())
    assert sys.exc_info() == (None, None, None)


def warning_filters(w):
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn("careful", stacklevel=1)
    assert str(caught[0].message) == "careful"
    assert warnings.formatwarning("m", UserWarning, "f", 1)


def context_variables(w):
    import contextvars

    variable = contextvars.ContextVar("v", default=0)
    token = variable.set(1)
    context = contextvars.copy_context()
    assert context.run(variable.get) == 1
    context.run(variable.set, 2)
    assert (variable.get(), context[variable]) == (1, 2)
    variable.reset(token)
    assert variable.get() == 0
    assert contextvars.Context().run(variable.get) == 0
    assert variable in context
    assert len(list(context.items())) >= 1


def context_managers(w):
    import contextlib
    import io

    @contextlib.contextmanager
    def manager():
        yield 1

    with manager() as value, contextlib.suppress(KeyError), contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(io.StringIO()))
        assert value == 1
        {}["x"]
    with contextlib.redirect_stdout(io.StringIO()) as text:
        print("x")
    assert text.getvalue() == "x\n"
    with contextlib.chdir(w.root):
        pass


def weak_references(w):
    import gc
    import weakref

    class Thing:
        pass

    thing = Thing()
    dead = []
    reference = weakref.ref(thing, dead.append)
    values = weakref.WeakValueDictionary(k=thing)
    keys = weakref.WeakKeyDictionary({thing: 1})
    weakref.finalize(thing, dead.append, "finalised")
    method = weakref.WeakMethod(dead.append) if hasattr(dead.append, "__func__") else None
    proxy = weakref.proxy(thing)
    proxy.attribute = 1
    assert weakref.getweakrefcount(thing) >= 2
    del thing
    gc.collect()
    assert reference() is None
    assert len(values) == len(keys) == 0
    assert len(dead) == 2


def garbage(w):
    import gc

    class Loop:
        def __del__(self):
            died.append(1)

    died = []
    one = Loop()
    one.me = one
    del one
    gc.collect()
    assert died == [1]
    gc.disable()
    gc.enable()
    assert gc.isenabled()
    assert gc.get_count()


def text_and_numbers(w):
    import decimal
    import difflib
    import fractions
    import re
    import statistics
    import string
    import textwrap

    assert re.sub(r"(\w+) (\w+)", r"\2 \1", "a b") == "b a"
    assert decimal.Decimal("0.1") + decimal.Decimal("0.2") == decimal.Decimal("0.3")
    with decimal.localcontext(prec=3):
        assert str(decimal.Decimal(1) / 3) == "0.333"
    assert fractions.Fraction(1, 3) * 3 == 1
    assert statistics.mean([1, 2, 3]) == 2
    assert string.Template("$a").substitute(a=1) == "1"
    assert textwrap.dedent(" x") == "x"
    assert list(difflib.unified_diff(["a"], ["b"]))


def urls(w):
    import urllib.parse
    import urllib.request

    assert urllib.parse.urlsplit("https://a.example/p?q=1#f").hostname == "a.example"
    assert urllib.parse.urlencode({"a": "ü"}) == "a=%C3%BC"
    assert urllib.request.Request("https://a.example/").get_method() == "GET"
    urllib.request.build_opener()
    urllib.request.getproxies()
    assert __import__("ipaddress").ip_address("::1").is_loopback


def mocks(w):
    import unittest.mock

    with unittest.mock.patch("os.getcwd", return_value="/elsewhere"):
        assert os.getcwd() == "/elsewhere"
    with unittest.mock.patch.dict(os.environ, {"MOCKED": "1"}):
        assert os.environ["MOCKED"] == "1"
    with unittest.mock.patch("builtins.open", unittest.mock.mock_open(read_data="x")):
        assert open("anything").read() == "x"
    mock = unittest.mock.Mock(spec=["a"])
    mock.a(1)
    mock.a.assert_called_once_with(1)


def unit_tests(w):
    import doctest
    import io
    import unittest

    class Case(unittest.TestCase):
        def test_one(self):
            self.assertEqual(1, 1)

    result = unittest.TextTestRunner(stream=io.StringIO()).run(unittest.defaultTestLoader.loadTestsFromTestCase(Case))
    assert result.wasSuccessful()
    assert doctest.DocTestParser().get_examples(">>> 1\n1\n")


def dynamic_code(w):
    import ast
    import types

    assert eval("1 + 1") == 2
    space = {}
    exec("def f(): return 3", space)
    assert space["f"]() == 3
    tree = ast.parse("x = 1")
    assert ast.unparse(tree) == "x = 1"
    made = types.FunctionType(space["f"].__code__, {})
    assert made() == 3
    assert types.new_class("Made").__name__ == "Made"
    assert types.SimpleNamespace(a=1).a == 1
    module = types.ModuleType("made_module")
    module.value = 1
    sys.modules["made_module"] = module
    import made_module

    assert made_module.value == 1
    del sys.modules["made_module"]


def import_machinery(w):
    import importlib
    import importlib.util
    import pkgutil
    import runpy

    assert importlib.util.find_spec("json").origin.endswith("__init__.py")
    assert importlib.util.find_spec("no_such_module_at_all") is None
    assert importlib.reload(importlib.import_module("colorsys"))
    assert len(list(pkgutil.iter_modules())) > 100
    path = os.path.join(w.root, "script.py")
    with open(path, "w") as file:
        file.write("answer = 6 * 7")
    assert runpy.run_path(path)["answer"] == 42
    spec = importlib.util.spec_from_file_location("by_location", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.answer == 42
    try:
        import no_such_module_at_all
    except ModuleNotFoundError:
        pass


def compiling(w):
    import compileall
    import py_compile

    path = os.path.join(w.root, "m.py")
    with open(path, "w") as file:
        file.write("x = 1")
    assert py_compile.compile(path, doraise=True)
    assert compileall.compile_dir(w.root, quiet=2)


def resources_and_metadata(w):
    import importlib.metadata
    import importlib.resources

    assert importlib.metadata.version("idna")
    assert any(name == "pip" or name for name in importlib.metadata.packages_distributions())
    assert importlib.metadata.entry_points()
    assert importlib.resources.files("idna").joinpath("core.py").read_text()
    with importlib.resources.as_file(importlib.resources.files("idna").joinpath("py.typed")) as path:
        assert path.exists()
    assert __import__("pkgutil").get_data("idna", "core.py")


def signals(w):
    import signal

    seen = []
    previous = signal.signal(signal.SIGUSR1, lambda *_: seen.append(1))
    signal.raise_signal(signal.SIGUSR1)
    signal.raise_signal(signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, previous)
    assert len(seen) == 2
    assert signal.getsignal(signal.SIGUSR1) == previous
    assert signal.strsignal(signal.SIGTERM)


def fault_handler(w):
    import faulthandler

    with open(os.path.join(w.root, "faults"), "w") as file:
        faulthandler.dump_traceback(file)
    assert os.path.getsize(os.path.join(w.root, "faults")) > 0


def measuring(w):
    import cProfile
    import io
    import pstats
    import time
    import timeit
    import tracemalloc

    assert timeit.timeit("1", number=10) >= 0
    assert time.perf_counter()
    tracemalloc.start()
    assert tracemalloc.get_traced_memory()
    tracemalloc.stop()


def bits_and_structures(w):
    import array
    import bisect
    import heapq
    import struct

    assert struct.unpack("<I", struct.pack("<I", 7)) == (7,)
    values = array.array("i", [3, 1, 2])
    assert heapq.nsmallest(1, values) == [1]
    assert bisect.bisect([1, 2, 3], 2) == 2
    with open(os.path.join(w.root, "a"), "wb") as file:
        values.tofile(file)
    with open(os.path.join(w.root, "a"), "rb") as file:
        array.array("i").fromfile(file, 3)


def argument_parsing(w):
    import argparse

    parser = argparse.ArgumentParser(prog="p")
    parser.add_argument("--file", type=argparse.FileType("w"))
    path = os.path.join(w.root, "f")
    parser.parse_args(["--file", path]).file.close()
    assert os.path.exists(path)
    assert parser.format_help()


def typing_tools(w):
    import typing

    T = typing.TypeVar("T")

    class Box(typing.Generic[T]):
        value: T

    assert typing.get_type_hints(Box, localns={"T": T}, include_extras=True)
    assert typing.get_args(dict[str, int]) == (str, int)


def recursion_and_limits(w):
    import resource

    def deep(n):
        return n and deep(n - 1)

    assert deep(500) == 0
    assert resource.getrusage(resource.RUSAGE_SELF)
    endless = lambda: endless()
    try:
        endless()
    except RecursionError:
        pass


def identity_functions(w):
    assert id(w) == id(w)
    assert sys.getrefcount(w) > 1
    assert sys.getsizeof([]) > 0
    assert sys.intern("x") == "x"
    assert hash("x") == hash("x")
    assert sys.version_info >= (3, 11)
    assert sys.getrecursionlimit()


def subclasses_of_modules(w):
    import types

    class Lazy(types.ModuleType):
        def __setattr__(self, name, value):
            super().__setattr__(name, value)

        def __delattr__(self, name):
            types.ModuleType.__delattr__(self, name)

    lazy = Lazy("lazy")
    lazy.attribute = 1
    object.__setattr__(lazy, "other", 2)
    assert (lazy.attribute, lazy.other) == (1, 2)
    del lazy.attribute
    assert not hasattr(lazy, "attribute")


def contents_of_contexts(w):
    import contextvars

    own = contextvars.ContextVar("own")
    empty, current = contextvars.Context(), contextvars.copy_context()
    assert len(empty) == 0
    assert not [variable.name for variable in current if variable.name.startswith("democrai")]
    current.run(own.set, 1)
    assert current[own] == 1
    assert dict(current.items())[own] == 1
    assert len(current) == len(list(current)) == len(list(current.keys())) == len(list(current.values()))
    assert current.copy() == current
    assert current != empty


def own_codecs(w):
    import codecs

    def search(name):
        return codecs.lookup("ascii") if name == "democrai_own" else None

    codecs.register(search)
    assert "x".encode("democrai_own") == b"x"
    codecs.unregister(search)


def signatures_of_replaced_methods(w):
    """Their signatures equal those of the replaced functions."""
    import asyncio
    import concurrent.futures
    import inspect
    import multiprocessing.pool
    import weakref

    replaced = {
        concurrent.futures.ThreadPoolExecutor.submit: "self fn args kwargs",
        concurrent.futures.Future.add_done_callback: "self fn",
        weakref.finalize.__init__: "self obj func args kwargs",
        multiprocessing.pool.Pool.apply_async: "self func args kwds callback error_callback",
        multiprocessing.pool.Pool.imap: "self func iterable chunksize",
        asyncio.BaseEventLoop.set_exception_handler: "self handler",
        asyncio.BaseEventLoop.set_task_factory: "self factory",
        asyncio.BaseEventLoop.set_default_executor: "self executor",
        asyncio.BaseEventLoop.get_task_factory: "self",
    }
    for method, names in replaced.items():
        assert list(inspect.signature(method).parameters) == names.split()
