"""Library functions that open files by themselves, and C code below them."""

from __future__ import annotations

import os
import sys

from tests.guard.attacks.kit import FILES, SANDBOX, Ground, attack, attacks_of


def prepare_code(ground: Ground) -> None:
    import bz2
    import gzip
    import lzma
    import zipfile

    code = f"VALUE = {ground.SECRET!r}\n"
    ground.write(f"{ground.outside_dir}/loot_module.py", code)
    ground.write(f"{ground.outside_dir}/netrc", f"machine x login y password {ground.SECRET}\n")
    for name, compress in (("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)):
        ground.write(f"{ground.outside_dir}/code.{name}", compress(code.encode()))
    with zipfile.ZipFile(f"{ground.outside_dir}/code.zip", "w") as archive:
        archive.writestr("zipped_module.py", code)


def load_from_spec(ground: Ground) -> object:
    from importlib.util import module_from_spec, spec_from_file_location

    spec = spec_from_file_location("loot_module", f"{ground.outside_dir}/loot_module.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.VALUE


def zip_import(ground: Ground) -> object:
    import zipimport

    return zipimport.zipimporter(f"{ground.outside_dir}/code.zip").get_data("zipped_module.py")


def loader_data(ground: Ground) -> object:
    from importlib.machinery import SourceFileLoader

    return SourceFileLoader("x", ground.outside).get_data(ground.outside)


def load_module(ground: Ground) -> object:
    from importlib.machinery import SourceFileLoader

    return SourceFileLoader("loot_module", f"{ground.outside_dir}/loot_module.py").load_module().VALUE


def run_path(ground: Ground) -> object:
    import runpy

    return runpy.run_path(f"{ground.outside_dir}/loot_module.py")["VALUE"]


def source_lines(ground: Ground) -> object:
    import importlib.machinery

    return importlib.machinery.SourceFileLoader("x", f"{ground.outside_dir}/loot_module.py").get_source("x")


def file_url(ground: Ground) -> object:
    import urllib.request

    return urllib.request.urlopen(f"file://{ground.outside}").read()


def xml_entity(ground: Ground) -> object:
    import io
    import xml.sax.handler
    import xml.sax.xmlreader

    class Handler(xml.sax.handler.ContentHandler):
        text = ""

        def characters(self, content: str) -> None:
            self.text += content

    parser = xml.sax.make_parser()
    handler = Handler()
    parser.setContentHandler(handler)
    parser.setFeature(xml.sax.handler.feature_external_ges, True)
    source = xml.sax.xmlreader.InputSource()
    source.setByteStream(io.BytesIO(f'<!DOCTYPE d [<!ENTITY e SYSTEM "file://{ground.outside}">]><d>&e;</d>'.encode()))
    parser.parse(source)
    return handler.text


attacks_of(
    {
        "run_path": run_path,
        "spec_from_file_location": load_from_spec,
        "get_data": loader_data,
        "load_module": load_module,
        "get_source": source_lines,
        "zipimporter": zip_import,
        "netrc": lambda ground: __import__("netrc").netrc(f"{ground.outside_dir}/netrc").authenticators("x")[2],
        "file_url": file_url,
        "xml_entity": xml_entity,
        "gzip": lambda ground: __import__("gzip").open(f"{ground.outside_dir}/code.gz").read(),
        "bz2": lambda ground: __import__("bz2").open(f"{ground.outside_dir}/code.bz2").read(),
        "lzma": lambda ground: __import__("lzma").open(f"{ground.outside_dir}/code.xz").read(),
        "zipfile": lambda ground: (
            __import__("zipfile").ZipFile(f"{ground.outside_dir}/code.zip").read("zipped_module.py")
        ),
        "mmap": lambda ground: __import__("mmap").mmap(os.open(ground.outside, os.O_RDONLY), 0, access=1).read(),
        "expanded_home": lambda ground: open(os.path.expanduser("~/secret.txt")).read(),
        "numpy_fromfile": lambda ground: __import__("numpy").fromfile(ground.outside, dtype="u1").tobytes(),
        "numpy_memmap": lambda ground: bytes(__import__("numpy").memmap(ground.outside, dtype="u1", mode="r")),
    },
    "a library ({}) reads outside",
    expect=FILES.unseen,
    prepare=prepare_code,
    needs=("numpy",),
)


def import_from_path(ground: Ground) -> object:
    sys.path.insert(0, ground.outside_dir)
    import loot_module

    return loot_module.VALUE


def import_from_zip(ground: Ground) -> object:
    sys.path.insert(0, f"{ground.outside_dir}/code.zip")
    import zipped_module

    return zipped_module.VALUE


def import_from_package_path(ground: Ground) -> object:
    import package

    package.__path__.append(ground.outside_dir)
    import package.loot_module

    return package.loot_module.VALUE


attacks_of(
    {
        "sys_path": import_from_path,
        "sys_path_zip": import_from_zip,
        "package_path": import_from_package_path,
    },
    "the import system is pointed outside ({})",
    expect=FILES.unseen,
    prepare=prepare_code,
)
