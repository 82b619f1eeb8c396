"""Files that C libraries open: message catalogs, terminal descriptions, certificates, logs."""

from __future__ import annotations

import os
import struct

from tests.guard.attacks.kit import FILES, SANDBOX, Denied, Ground, Works, attack, attacks_of
from tests.guard.attacks.network import NETWORK

# ---- message catalogues -----------------------------------------------------------------------------


def catalogue(original: bytes, translated: bytes) -> bytes:
    """A compiled catalogue with one message."""
    texts = 28 + 16
    head = struct.pack("<7I", 0x950412DE, 0, 1, 28, 36, 0, texts)
    tables = struct.pack("<4I", len(original), texts, len(translated), texts + len(original) + 1)
    return head + tables + original + b"\0" + translated + b"\0"


def plant_catalogue(ground: Ground) -> None:
    folder = f"{ground.outside_dir}/xx/LC_MESSAGES"
    os.makedirs(folder)
    ground.write(f"{folder}/secret.mo", catalogue(b"word", ground.SECRET.encode()))
    os.environ["LANGUAGE"] = "xx"


def translated(ground: Ground, domain: str) -> object:
    import _locale

    for name in ("C.UTF-8", "C.utf8", "en_US.UTF-8"):
        try:
            _locale.setlocale(_locale.LC_ALL, name)
            break
        except _locale.Error:
            continue
    return _locale.dgettext(domain, "word")


def bound(ground: Ground) -> object:
    import _locale

    _locale.bindtextdomain("secret", ground.outside_dir)
    return translated(ground, "secret")


attack("a message catalogue outside is read", expect=SANDBOX, prepare=plant_catalogue)(bound)

attacks_of(
    {
        "domain": lambda ground: __import__("_locale").dgettext("../../secret", "word") and None,
        "category": lambda ground: __import__("_locale").dcgettext("../../secret", "word", 5) and None,
        "default_domain": lambda ground: __import__("_locale").textdomain("../../secret") and None,
    },
    "a catalogue is named past the folder of catalogues: {}",
    expect=SANDBOX,
    group="catalogue_",
    unguarded="no catalogue has that name",
)


STEERING = ("LOCPATH", "GCONV_PATH", "NLSPATH", "TZDIR", "INPUTRC", "OPENSSL_CONF", "OPENSSL_MODULES")


def steering(name: str):
    def act(ground: Ground) -> None:
        os.environ[name] = ground.outside_dir

    return act


attacks_of(
    {name: steering(name) for name in STEERING},
    "a C library is told where its files and native code are: {}",
    expect=Denied(("sandbox_env_denied:",)),
    group="variable_",
    after=lambda ground: any(os.environ.get(name) == ground.outside_dir for name in STEERING),
)


# ---- terminals --------------------------------------------------------------------------------------


def plant_terminal(ground: Ground) -> None:
    """An entry for a terminal in a home outside, of a database that the machine has."""
    for folder in ("/usr/share/terminfo", "/lib/terminfo", "/etc/terminfo"):
        if os.path.exists(f"{folder}/d/dumb"):
            os.makedirs(f"{ground.outside_dir}/.terminfo/s")
            with open(f"{folder}/d/dumb", "rb") as file:
                entry = file.read()
            # the same length, so that the header stays right
            ground.write(f"{ground.outside_dir}/.terminfo/s/secret", entry)
            return


def own_terminal(ground: Ground) -> object:
    import curses

    os.environ["HOME"] = ground.outside_dir
    curses.setupterm("secret", os.open(os.devnull, os.O_WRONLY))
    return ground.SECRET


attack("the description of a terminal is read from a home outside", expect=FILES, prepare=plant_terminal)(own_terminal)


# ---- sqlite -----------------------------------------------------------------------------------------


def temporary_folder(ground: Ground) -> None:
    import sqlite3

    database = sqlite3.connect(f"{ground.inside}/own.db")
    database.execute(f"PRAGMA temp_store_directory = '{ground.outside_dir}'")


def is_temporary_folder(ground: Ground) -> bool:
    import sqlite3

    rows = sqlite3.connect(":memory:").execute("PRAGMA temp_store_directory").fetchall()
    return rows == [(ground.outside_dir,)]


attack(
    "sqlite is told where to put temporary files of the whole process",
    expect=SANDBOX,
    after=is_temporary_folder,
)(temporary_folder)


@attack("sorts and temporary tables work, and leave no files elsewhere", expect=Works())
def temporary_tables(ground: Ground) -> bool:
    import sqlite3

    database = sqlite3.connect(f"{ground.inside}/own.db")
    database.execute("PRAGMA temp_store = FILE")
    database.execute("CREATE TEMP TABLE words (word TEXT)")
    database.executemany("INSERT INTO words VALUES (?)", [(str(number) * 40,) for number in range(2000)])
    counted = database.execute("SELECT count(DISTINCT word) FROM (SELECT word FROM words ORDER BY word DESC)")
    return counted.fetchone() == (2000,)


# ---- certificates -----------------------------------------------------------------------------------

attacks_of(
    {
        "decoded": lambda ground: __import__("_ssl")._test_decode_cert(ground.plant("a.pem", "no certificate")),
        "keylog": lambda ground: setattr(
            __import__("ssl").create_default_context(), "keylog_filename", f"{ground.outside_dir}/new"
        ),
        "keylog_readable": lambda ground: setattr(
            __import__("ssl").create_default_context(), "keylog_filename", f"{ground.readonly}/new"
        ),
    },
    "OpenSSL opens a file outside: {}",
    expect=FILES,
    group="certificate_",
    after=lambda ground: (
        os.path.exists(f"{ground.outside_dir}/new")
        or os.path.exists(f"{ground.readonly}/new")
        or (os.path.exists(f"{ground.base}/elsewhere/a.pem") and ground.was_read("a.pem"))
    ),
)


# ---- the system log ---------------------------------------------------------------------------------

attacks_of(
    {
        "message": lambda ground: __import__("syslog").syslog("stolen"),
        "opened": lambda ground: __import__("syslog").openlog("other", __import__("syslog").LOG_NDELAY),
        "closed": lambda ground: __import__("syslog").closelog(),
        "mask": lambda ground: __import__("syslog").setlogmask(0) and None,
    },
    "the system log is reached: {}",
    expect=NETWORK,
    group="log_",
    unguarded="needs a system log, and would write into it",
)


# ---- bytecode ---------------------------------------------------------------------------------------


def bytecode_elsewhere(ground: Ground) -> bool:
    import sys

    return sys.pycache_prefix is not None


def set_prefix(ground: Ground) -> None:
    import sys

    sys.pycache_prefix = ground.inside


def set_prefix_in_vars(ground: Ground) -> None:
    import sys

    vars(sys)["pycache_prefix"] = ground.inside


attacks_of(
    {"set": set_prefix, "vars": set_prefix_in_vars},
    "bytecode of the host's next import is written where the subject says: {}",
    expect=Denied(("sandbox_",), or_nothing=True),
    group="bytecode_",
    after=bytecode_elsewhere,
)


# ---- modules ----------------------------------------------------------------------------------------


def keep_guard(ground: Ground) -> None:
    """A guard stays alive, as in a host that runs extensions."""
    import atexit

    atexit.register(len, "")


def imported_by_host(ground: Ground) -> bool:
    import colorsys

    colorsys.steal(ground)
    return False


def plant_source(ground: Ground) -> None:
    import sys

    keep_guard(ground)
    with open(f"{ground.inside}/colorsys.py", "w") as file:
        file.write("def steal(ground):\n    ground.steal()\n")
    sys.path.insert(0, ground.inside)


def plant_bytecode(ground: Ground) -> None:
    import py_compile
    import sys

    keep_guard(ground)
    with open(f"{ground.inside}/x.py", "w") as file:
        file.write("def steal(ground):\n    ground.steal()\n")
    py_compile.compile(f"{ground.inside}/x.py", f"{ground.inside}/colorsys.pyc", f"{ground.inside}/colorsys.py")
    sys.path.insert(0, ground.inside)


attacks_of(
    {"source": plant_source, "bytecode": plant_bytecode},
    "the host imports a module that the subject has put before its own: {}",
    expect=Denied(("sandbox_",), or_errors=("ImportError",)),
    group="planted_",
    after=imported_by_host,
)
