"""Packages whose native code opens files or connections directly, which a guard in the process cannot see.

The only list of them, for ``manifest lint``, ``doctor`` and the console. A package belongs here if ordinary code calls
it with a path, URL or address, and it accesses that without any call that CPython knows of. Packages that open files in
Python and parse them in native code (numpy, pandas, pillow's images) do not belong here.
"""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_FILES, _HOSTS, _BOTH = "files", "connections", "files and connections"

NATIVE_ACCESS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *("apsw", "av", "cv2", "faiss", "fitz", "h5py", "lmdb", "netCDF4", "onnxruntime", "plyvel", "polars"),
                *("pymupdf", "pypdfium2", "rocksdict", "safetensors", "sentencepiece", "soundfile", "tables"),
                *("tokenizers", "xgboost", "lightgbm", "catboost"),
            ),
            _FILES,
        ),
        **dict.fromkeys(
            (
                *("MySQLdb", "confluent_kafka", "cx_Oracle", "grpc", "oracledb", "psycopg", "psycopg2", "pycurl"),
                *("pymssql", "pynng", "pyodbc", "zmq"),
            ),
            _HOSTS,
        ),
        **dict.fromkeys(
            ("duckdb", "fiona", "hf_xet", "lancedb", "lxml", "osgeo", "pyarrow", "pyogrio", "rasterio", "tensorflow"),
            _BOTH,
        ),
    }
)
"""Resources that each import root opens directly."""

_ROOTS = "|".join(map(re.escape, NATIVE_ACCESS))
_IMPORT = re.compile(
    rf"^[ \t]*(?:from[ \t]+({_ROOTS})[ \t.]|import[ \t]+(?:[\w., \t]*,[ \t]*)?({_ROOTS})(?![\w]))".encode(),
    re.MULTILINE,
)


def native_imports(sources: Iterable[bytes]) -> Iterator[str]:
    """Yield the packages of the list that Python sources import, each once."""
    found: set[str] = set()
    for source in sources:
        for match in _IMPORT.finditer(source):
            root = (match[1] or match[2]).decode()
            if root not in found:
                found.add(root)
                yield root
