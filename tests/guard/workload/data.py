"""Ordinary work with data: databases, serialization, logs, caches."""

from __future__ import annotations

import os
from pathlib import Path


def sqlite_in_the_root(w):
    import sqlite3

    path = os.path.join(w.root, "a.db")
    with sqlite3.connect(path) as connection:
        connection.execute("create table t (x)")
        connection.executemany("insert into t values (?)", [(i,) for i in range(100)])
    connection.close()
    connection = sqlite3.connect(path)
    assert connection.execute("select sum(x) from t").fetchone() == (4950,)
    connection.close()


def sqlite_wal(w):
    import sqlite3

    path = os.path.join(w.root, "a.db")
    connection = sqlite3.connect(path)
    assert connection.execute("pragma journal_mode=wal").fetchone() == ("wal",)
    connection.execute("create table t (x)")
    connection.commit()
    other = sqlite3.connect(path)
    assert other.execute("select count(*) from t").fetchone() == (0,)
    assert os.path.exists(path + "-wal")
    other.close()
    connection.close()


def sqlite_memory_and_backup(w):
    import sqlite3

    memory = sqlite3.connect(":memory:")
    memory.execute("create table t (x)")
    memory.execute("insert into t values (1)")
    memory.commit()
    copy = sqlite3.connect(os.path.join(w.root, "copy.db"))
    memory.backup(copy)
    assert copy.execute("select * from t").fetchall() == [(1,)]
    assert "create table" in "\n".join(memory.iterdump()).lower()
    copy.close()
    memory.close()


def sqlite_attach_inside(w):
    import sqlite3

    connection = sqlite3.connect(os.path.join(w.root, "a.db"))
    connection.execute("attach ? as other", (os.path.join(w.root, "b.db"),))
    connection.execute("create table other.t (x)")
    connection.commit()
    connection.execute("detach other")
    connection.execute("vacuum into ?", (os.path.join(w.root, "c.db"),))
    connection.execute("attach ':memory:' as scratch")
    connection.execute("create temp table u (x)")
    connection.close()
    assert os.path.exists(os.path.join(w.root, "c.db"))


def sqlite_features(w):
    import sqlite3

    connection = sqlite3.connect(f"file:{os.path.join(w.root, 'a.db')}?mode=rwc", uri=True, check_same_thread=False)
    connection.row_factory = sqlite3.Row
    connection.create_function("twice", 1, lambda x: 2 * x)
    assert connection.execute("select twice(4) as n").fetchone()["n"] == 8
    connection.set_trace_callback(lambda text: None)
    connection.set_progress_handler(lambda: 0, 1000)
    with connection:
        connection.executescript("create table t (x); insert into t values (1);")
    connection.close()


def dbm_and_shelve(w):
    import dbm.dumb
    import shelve

    with dbm.dumb.open(os.path.join(w.root, "dumb"), "c") as database:
        database["k"] = "v"
    with shelve.open(os.path.join(w.root, "shelf")) as shelf:
        shelf["k"] = [1, 2]
    with shelve.open(os.path.join(w.root, "shelf"), "r") as shelf:
        assert shelf["k"] == [1, 2]


def dbm_backends(w):
    import dbm

    for name in ("dbm.gnu", "dbm.ndbm", "dbm.sqlite3"):
        try:
            module = __import__(name, fromlist=["open"])
        except ImportError:
            continue
        path = os.path.join(w.root, name)
        with module.open(path, "c") as database:
            database[b"k"] = b"v"
        assert dbm.whichdb(path) == name


def pickles_and_json(w):
    import json
    import pickle

    value = {"a": [1, 2.5, None, "ü"]}
    path = Path(w.root, "v")
    path.write_bytes(pickle.dumps(value))
    assert pickle.loads(path.read_bytes()) == value
    with path.open("w") as file:
        json.dump(value, file)
    assert json.loads(path.read_text()) == value


def tables_and_configuration(w):
    import configparser
    import csv
    import plistlib
    import tomllib

    with open(os.path.join(w.root, "t.csv"), "w", newline="") as file:
        csv.writer(file).writerows([["a", "b"], [1, 2]])
    with open(os.path.join(w.root, "t.csv"), newline="") as file:
        assert list(csv.DictReader(file)) == [{"a": "1", "b": "2"}]
    Path(w.root, "c.ini").write_text("[s]\nk=v\n")
    parser = configparser.ConfigParser()
    assert parser.read([os.path.join(w.root, "c.ini"), os.path.join(w.root, "missing.ini")]) == [
        os.path.join(w.root, "c.ini")
    ]
    Path(w.root, "c.toml").write_text("a = 1")
    with open(os.path.join(w.root, "c.toml"), "rb") as file:
        assert tomllib.load(file) == {"a": 1}
    Path(w.root, "p").write_bytes(plistlib.dumps({"a": 1}))


def xml_and_html(w):
    import html.parser
    import xml.etree.ElementTree as ET

    path = os.path.join(w.root, "a.xml")
    ET.ElementTree(ET.fromstring("<a><b>x</b></a>")).write(path)
    assert ET.parse(path).find("b").text == "x"
    html.parser.HTMLParser().feed("<p>x</p>")


def logging_to_files(w):
    import logging
    import logging.config
    import logging.handlers

    path = os.path.join(w.root, "a.log")
    logger = logging.getLogger("workload")
    handlers = [
        logging.FileHandler(path),
        logging.FileHandler(os.path.join(w.root, "late.log"), delay=True),
        logging.handlers.RotatingFileHandler(os.path.join(w.root, "r.log"), maxBytes=200, backupCount=3),
        logging.handlers.TimedRotatingFileHandler(os.path.join(w.root, "t.log"), when="S", backupCount=1),
        logging.handlers.WatchedFileHandler(os.path.join(w.root, "w.log")),
    ]
    for handler in handlers:
        logger.addHandler(handler)
    for number in range(50):
        logger.warning("line %s", number)
    try:
        raise ValueError("x")
    except ValueError:
        logger.exception("with a traceback")
    for handler in handlers:
        logger.removeHandler(handler)
        handler.close()
    assert "line 49" in Path(path).read_text()
    assert os.path.exists(os.path.join(w.root, "r.log.1"))
    logging.getLogger().warning("to stderr")


def logging_by_queue(w):
    import logging
    import logging.handlers
    import queue

    handler = logging.FileHandler(os.path.join(w.root, "q.log"))
    lines = queue.Queue()
    listener = logging.handlers.QueueListener(lines, handler)
    listener.start()
    logger = logging.getLogger("queued")
    logger.addHandler(logging.handlers.QueueHandler(lines))
    logger.error("through the queue")
    listener.stop()
    handler.close()
    assert "through the queue" in Path(w.root, "q.log").read_text()


def logging_configured(w):
    import logging.config

    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "handlers": {"f": {"class": "logging.FileHandler", "filename": os.path.join(w.root, "d.log")}},
            "loggers": {"configured": {"handlers": ["f"]}},
        }
    )
    logging.getLogger("configured").error("x")
    assert Path(w.root, "d.log").read_text() == "x\n"


def mail(w):
    import email.message
    import email.policy
    import mailbox

    message = email.message.EmailMessage()
    message["Subject"] = "ü"
    message.set_content("text")
    message.add_attachment(b"data", maintype="application", subtype="octet-stream", filename="f.bin")
    box = mailbox.mbox(os.path.join(w.root, "box"))
    box.add(message)
    box.flush()
    assert len(box) == 1
    box.close()
    folder = mailbox.Maildir(os.path.join(w.root, "maildir"))
    folder.add(message)
    assert len(folder) == 1


def mime_types(w):
    import mimetypes

    mimetypes.init()
    assert mimetypes.guess_type("a.html")[0] == "text/html"


def time_zones(w):
    import datetime as dt
    import time
    import zoneinfo

    zoneinfo.ZoneInfo.clear_cache()
    zone = zoneinfo.ZoneInfo("Europe/Rome")
    assert dt.datetime(2024, 7, 1, tzinfo=zone).utcoffset() == dt.timedelta(hours=2)
    assert "UTC" in zoneinfo.available_timezones()
    assert dt.datetime.now().astimezone().tzinfo
    time.tzset()
    assert time.localtime().tm_year > 2000


def locales(w):
    import gettext
    import locale

    locale.setlocale(locale.LC_ALL, "C.UTF-8")
    assert locale.getpreferredencoding(False)
    assert gettext.gettext("text") == "text"
    assert gettext.find("nothing") is None


def randomness(w):
    import random
    import secrets
    import uuid

    assert random.Random(4).random()
    assert random.SystemRandom().randint(0, 9) < 10
    assert len(secrets.token_bytes(8)) == 8
    assert uuid.uuid4()
    assert os.urandom(4)


def hashes(w):
    import hashlib
    import hmac

    path = Path(w.root, "f")
    path.write_bytes(b"x")
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest()[:4] == "2d71"
    assert hmac.new(b"k", b"m", "sha256").digest()
    assert hashlib.new("blake2b", b"").digest()
    assert hashlib.scrypt(b"p", salt=b"s", n=2, r=1, p=1)


def fileinput_and_filecmp(w):
    import filecmp
    import fileinput

    for name in ("a", "b"):
        Path(w.root, name).write_text("x\n")
    with fileinput.input([os.path.join(w.root, "a"), os.path.join(w.root, "b")]) as lines:
        assert len(list(lines)) == 2
    with fileinput.input(os.path.join(w.root, "a"), inplace=True) as lines:
        for line in lines:
            print(line.upper(), end="")
    assert Path(w.root, "a").read_text() == "X\n"
    assert not filecmp.cmp(os.path.join(w.root, "a"), os.path.join(w.root, "b"), shallow=False)


def certificates(w):
    import ssl

    context = ssl.create_default_context()
    assert context.verify_mode == ssl.CERT_REQUIRED
    context.load_default_certs()
    assert ssl.get_default_verify_paths()


def curses_free_terminal_questions(w):
    import getpass
    import shutil

    assert shutil.get_terminal_size()
    os.environ["LOGNAME"] = "someone"
    assert getpass.getuser() == "someone"


def account_lookups(w):
    import grp
    import pwd

    assert pwd.getpwuid(os.getuid()).pw_name
    assert grp.getgrgid(os.getgid()).gr_name
    assert Path(w.root).owner()


def readline_history(w):
    try:
        import readline
    except ImportError:
        return
    path = os.path.join(w.root, "history")
    readline.write_history_file(path)
    readline.read_history_file(path)


def environment(w):
    os.environ["WORKLOAD"] = "x"
    assert os.getenv("WORKLOAD") == "x"
    os.environ.update(WORKLOAD="y")
    del os.environ["WORKLOAD"]
    os.environ.setdefault("WORKLOAD2", "z")
    assert os.environ.pop("WORKLOAD2") == "z"
    os.environ |= {"WORKLOAD3": "w"}
    assert os.environ.pop("WORKLOAD3") == "w"
    assert dict(os.environ)
    assert os.path.expandvars("$HOME") == os.environ["HOME"]
    os.environb[b"BYTES"] = b"x"
    os.putenv("PLAIN", "x")
    os.unsetenv("PLAIN")


def platform_facts(w):
    import platform
    import socket
    import sysconfig

    assert platform.python_version()
    assert platform.machine()
    assert sysconfig.get_paths()["stdlib"]
    assert sysconfig.get_config_var("EXT_SUFFIX")
    assert os.cpu_count()
    assert socket.gethostname()
    assert platform.libc_ver(os.path.realpath(__import__("sys").executable)) is not None
    assert platform.freedesktop_os_release() if os.path.exists("/etc/os-release") else True


def own_authorizer(w):
    import sqlite3

    asked = []
    connection = sqlite3.connect(os.path.join(w.root, "authorized.db"))
    connection.set_authorizer(lambda *what: asked.append(what[0]) or sqlite3.SQLITE_OK)
    connection.execute("create table t (a)")
    assert asked
    connection.set_authorizer(lambda *what: sqlite3.SQLITE_DENY)
    try:
        connection.execute("select a from t")
    except sqlite3.DatabaseError:
        refused = True
    connection.set_authorizer(None)
    assert refused
    assert connection.execute("select count(*) from t").fetchone() == (0,)
    connection.close()
