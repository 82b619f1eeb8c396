"""C code of the standard library that opens files, often without an audit event."""

from __future__ import annotations

import os

from tests.guard.attacks.kit import FILES, SANDBOX, Ground, attack, attacks_of

CERTIFICATE = """-----BEGIN CERTIFICATE-----
MIIBgzCCASmgAwIBAgIULql/EX5r+JApWhiepumJSLQbl4IwCgYIKoZIzj0EAwIw
FjEUMBIGA1UEAwwLYXR0YWNrLnRlc3QwIBcNMjYxMTE1MDEzMjI5WhgPMjEyNjEw
MjIwMTMyMjlaMBYxFDASBgNVBAMMC2F0dGFjay50ZXN0MFkwEwYHKoZIzj0CAQYI
KoZIzj0DAQcDQgAEdGKgZqtamF333YZCaKwtnQocoPlbTilGPuuvw6pbtcyJEzlj
oQnTOB031WcuNTY4OI4HFV7fVz/Z62mXFNrmD6NTMFEwHQYDVR0OBBYEFP4vUzn9
AOHmzR/8mI3cUe60m2pkMB8GA1UdIwQYMBaAFP4vUzn9AOHmzR/8mI3cUe60m2pk
MA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDSAAwRQIgVd7un8Y//E8Vqs5Q
WE1zLsOy1N8XgxYEd0QZ1BPUUE4CIQDrcCbhvd7rsR7qne0maM9BEeo8XmvcusXs
GETZrs9c6g==
-----END CERTIFICATE-----
"""


def shown_read(name: str, text: str | bytes = "text\n", **options: object):
    """An attack on a planted file, proven by the file's access time."""
    needs = ("access times", *options.pop("needs", ()))
    expect = options.pop("expect", FILES)
    return attack(
        f"{name} makes C code read a file outside",
        expect=expect,
        name=name,
        needs=needs,
        prepare=lambda ground: ground.plant("file", text),
        after=lambda ground: ground.was_read("file"),
        **options,
    )


def planted(ground: Ground) -> str:
    return f"{ground.base}/elsewhere/file"


def new_context():
    import ssl

    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@shown_read("ssl_certificate_chain", CERTIFICATE)
def ssl_certificate_chain(ground: Ground) -> None:
    new_context().load_cert_chain(planted(ground))


@shown_read("ssl_private_key", CERTIFICATE)
def ssl_private_key(ground: Ground) -> None:
    certificate = f"{ground.inside}/certificate.pem"
    open(certificate, "w").write(CERTIFICATE)
    new_context().load_cert_chain(certificate, keyfile=planted(ground))


@shown_read("ssl_verify_locations", CERTIFICATE)
def ssl_verify_locations(ground: Ground) -> None:
    new_context().load_verify_locations(planted(ground))


@shown_read("ssl_c_context", CERTIFICATE)
def ssl_c_context(ground: Ground) -> None:
    import _ssl
    import ssl

    _ssl._SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=planted(ground).encode())


@shown_read("ssl_parameters")
def ssl_parameters(ground: Ground) -> None:
    new_context().load_dh_params(planted(ground))


@shown_read("ssl_default_paths", CERTIFICATE, expect=FILES.quietly | SANDBOX)
def ssl_default_paths(ground: Ground) -> None:
    os.environ["SSL_CERT_FILE"] = planted(ground)
    new_context().set_default_verify_paths()


@attack("a folder outside is named as the place of certificates", expect=FILES)
def ssl_folder(ground: Ground) -> bool:
    new_context().load_verify_locations(capath=ground.outside_dir)
    return True


@attack("OpenSSL writes its key log outside", expect=FILES)
def ssl_keylog(ground: Ground) -> None:
    new_context().keylog_filename = f"{ground.outside_dir}/new"


@attack("OpenSSL is asked through the environment to write its key log outside", expect=FILES)
def ssl_keylog_environment(ground: Ground) -> None:
    import ssl

    os.environ["SSLKEYLOGFILE"] = f"{ground.outside_dir}/new"
    ssl.create_default_context()


@attack(
    "readline reads a history file outside",
    expect=FILES,
    needs=("readline",),
    early=lambda ground: ground.write(ground.outside, ground.SECRET + "\n"),
)
def readline_history(ground: Ground) -> object:
    import readline

    readline.read_history_file(ground.outside)
    return readline.get_history_item(1)


@attack("readline writes its history outside", expect=FILES, needs=("readline",))
def readline_write_history(ground: Ground) -> None:
    import readline

    readline.add_history("text")
    readline.write_history_file(f"{ground.outside_dir}/new")


@attack(
    "readline appends its history to a file outside",
    expect=FILES,
    needs=("readline",),
    early=lambda ground: ground.write(f"{ground.outside_dir}/history", "old\n"),
)
def readline_append_history(ground: Ground) -> None:
    import readline

    readline.add_history("text")
    readline.append_history_file(1, f"{ground.outside_dir}/history")


@shown_read("readline_init_file", "# nothing\n", needs=("readline",))
def readline_init_file(ground: Ground) -> None:
    import readline

    readline.read_init_file(planted(ground))


@shown_read("readline_include", "# nothing\n", needs=("readline",))
def readline_include(ground: Ground) -> None:
    import readline

    readline.parse_and_bind(f"$include {planted(ground)}")


@attack("the dumb database module makes its files outside", expect=FILES)
def dbm_dumb(ground: Ground) -> None:
    import dbm.dumb

    with dbm.dumb.open(f"{ground.outside_dir}/new", "n") as database:
        database["a"] = "b"


attacks_of(
    {
        name: lambda ground, name=name: __import__(name).open(f"{ground.outside_dir}/new", "n") and None
        for name in ("_dbm",)
    },
    "the database module {} makes its files outside",
    expect=FILES,
    needs=("_dbm",),
)
attacks_of(
    {
        name: lambda ground, name=name: __import__(name).open(f"{ground.outside_dir}/new", "n") and None
        for name in ("_gdbm",)
    },
    "the database module {} makes its files outside",
    expect=FILES,
    needs=("_gdbm",),
)


@attack("the SQLite database module makes its file outside", expect=FILES, since=(3, 13))
def dbm_sqlite(ground: Ground) -> None:
    import dbm.sqlite3

    dbm.sqlite3.open(f"{ground.outside_dir}/new", "n").close()


@attack(
    "the C library reads a time zone file outside that the environment names",
    expect=FILES.quietly | SANDBOX,
    needs=("access times", "/usr/share/zoneinfo/Asia/Tokyo"),
    prepare=lambda ground: ground.plant("zone", open("/usr/share/zoneinfo/Asia/Tokyo", "rb").read()),
    after=lambda ground: ground.was_read("zone"),
)
def time_zone(ground: Ground) -> None:
    import time

    os.environ["TZ"] = f":{ground.base}/elsewhere/zone"
    time.tzset()


def prepare_terminal(ground: Ground) -> None:
    folder = f"{ground.base}/elsewhere/x"
    os.makedirs(folder)
    for source in ("/usr/share/terminfo/x/xterm", "/lib/terminfo/x/xterm"):
        if os.path.exists(source):
            data = open(source, "rb").read()
            break
    ground.plant("x/xterm", data)


@attack(
    "curses reads a terminal description outside that the environment names",
    expect=FILES.quietly | SANDBOX,
    needs=("access times", "_curses", "/lib/terminfo/x/xterm"),
    prepare=prepare_terminal,
    after=lambda ground: ground.was_read("x/xterm"),
)
def terminal_description(ground: Ground) -> None:
    import curses

    os.environ["TERMINFO"] = f"{ground.base}/elsewhere"
    curses.setupterm("xterm", 1)


@attack("the shadow password module reads the password hashes", expect=SANDBOX, needs=("root", "spwd"), until=(3, 12))
def shadow_passwords(ground: Ground) -> bool:
    import spwd

    return len(spwd.getspall()) > 0


def prepare_shared_memory(ground: Ground) -> None:
    import _posixshmem

    ground.held.name = f"/attack-{os.getpid()}"
    descriptor = _posixshmem.shm_open(ground.held.name, os.O_CREAT | os.O_RDWR, 0o600)
    os.write(descriptor, ground.SECRET.encode())


def remove_shared_memory(ground: Ground) -> None:
    import _posixshmem

    if os.path.exists(f"/dev/shm{ground.held.name}"):
        _posixshmem.shm_unlink(ground.held.name)


@attack(
    "shared memory that belongs to the host is opened by its name",
    expect=SANDBOX,
    needs=("_posixshmem",),
    prepare=prepare_shared_memory,
    after=remove_shared_memory,
)
def shared_memory(ground: Ground) -> object:
    import _posixshmem

    return os.pread(_posixshmem.shm_open(ground.held.name, os.O_RDONLY), 99, 0)


@attack(
    "shared memory that belongs to the host is removed by its name",
    expect=SANDBOX,
    needs=("_posixshmem",),
    prepare=prepare_shared_memory,
    after=remove_shared_memory,
)
def shared_memory_unlink(ground: Ground) -> bool:
    import _posixshmem

    _posixshmem.shm_unlink(ground.held.name)
    return True


@attack("a Tcl interpreter reads a file outside", expect=SANDBOX, needs=("_tkinter",))
def tcl_open(ground: Ground) -> object:
    import _tkinter

    return _tkinter.create(None, "x", "X", False, 1, False).eval(f"read [open {{{ground.outside}}}]")


@attack(
    "a Tcl interpreter that the host made reads a file outside",
    expect=SANDBOX,
    needs=("_tkinter",),
    prepare=lambda ground: setattr(ground.held, "tcl", __import__("_tkinter").create(None, "x", "X", False, 1, False)),
)
def tcl_of_the_host(ground: Ground) -> object:
    return ground.held.tcl.eval(f"read [open {{{ground.outside}}}]")
