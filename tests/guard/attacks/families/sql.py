"""SQL statements that open files."""

from __future__ import annotations

import os
import sqlite3

from tests.guard.attacks.kit import FILES, SANDBOX, Ground, attack, attacks_of


def database(path: str) -> None:
    connection = sqlite3.connect(path)
    connection.executescript(f"create table t (x text); insert into t values ('{Ground.SECRET}');")
    connection.close()


def prepare(ground: Ground) -> None:
    database(f"{ground.outside_dir}/secret.db")
    os.symlink(f"{ground.outside_dir}/secret.db", f"{ground.inside}/link.db")
    ground.held.connection = sqlite3.connect(":memory:")
    ground.held.own = sqlite3.connect(f"{ground.inside}/host.db")


def secret(ground: Ground) -> str:
    return f"{ground.outside_dir}/secret.db"


def first(connection: sqlite3.Connection, table: str = "t") -> object:
    return connection.execute(f"select x from {table}").fetchone()[0]


def attached(connection: sqlite3.Connection, name: str) -> object:
    connection.execute("attach ? as a", (name,))
    return first(connection, "a.t")


def attached_text(ground: Ground) -> object:
    connection = sqlite3.connect(":memory:")
    connection.executescript(f"attach '{secret(ground)}' as a; create temp table l as select x from a.t;")
    return first(connection, "l")


def attached_uri(name: str) -> object:
    connection = sqlite3.connect("file::memory:", uri=True)
    connection.execute(f"attach '{name}' as a")
    return first(connection, "a.t")


def attached_literally(ground: Ground) -> object:
    """Without URIs the name is just a name, with a folder in it that looks like the beginning of a URI."""
    os.chdir(ground.inside)
    os.mkdir("file:own.db?")
    connection = sqlite3.connect(":memory:")
    connection.execute("attach 'file:own.db?/../../outside/secret.db' as a")
    return first(connection, "a.t")


def initialised_again(ground: Ground) -> object:
    connection = sqlite3.connect(f"{ground.inside}/own.db")
    connection.__init__(secret(ground))
    return first(connection)


class Sly(sqlite3.Connection):
    """A connection that goes elsewhere than its caller said."""

    target = ""

    def __init__(self, database: str, *rest: object, **named: object) -> None:
        super().__init__(Sly.target)


def by_factory(ground: Ground) -> object:
    Sly.target = secret(ground)
    return first(sqlite3.connect(f"{ground.inside}/own.db", factory=Sly))


def without_authorizer(ground: Ground) -> object:
    connection = sqlite3.connect(":memory:")
    connection.set_authorizer(None)
    return attached(connection, secret(ground))


def with_own_authorizer(ground: Ground) -> object:
    connection = sqlite3.connect(":memory:")
    connection.set_authorizer(lambda *_: sqlite3.SQLITE_OK)
    return attached(connection, secret(ground))


def backup(ground: Ground) -> object:
    source = sqlite3.connect(secret(ground))
    target = sqlite3.connect(f"{ground.inside}/copy.db")
    source.backup(target)
    return first(target)


class Flipping:
    """A path object that is harmless once."""

    def __init__(self, *answers: str) -> None:
        self.answers = list(answers)

    def __fspath__(self) -> str:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def flipped(ground: Ground) -> object:
    """Whichever of the answers is used, one of the objects gets through where answers are not taken once."""
    database(f"{ground.inside}/decoy.db")
    sqlite3.connect(f"{ground.inside}/decoy.db").executescript("update t set x = 'decoy'")
    last: BaseException | None = None
    for answers in range(4):
        path = Flipping(*[f"{ground.inside}/decoy.db"] * answers, secret(ground))
        try:
            found = first(sqlite3.connect(path))
        except OSError as error:
            last = error
            continue
        if found == ground.SECRET:
            return found
    raise last or RuntimeError("never denied")


attacks_of(
    {
        "connect": lambda ground: first(sqlite3.connect(secret(ground))),
        "c_connect": lambda ground: first(__import__("_sqlite3").connect(secret(ground))),
        "Connection": lambda ground: first(sqlite3.Connection(secret(ground))),
        "initialised_again": initialised_again,
        "by_factory": by_factory,
        "bytes": lambda ground: first(sqlite3.connect(secret(ground).encode())),
        "flipping": lambda ground: flipped(ground),
        "uri": lambda ground: first(sqlite3.connect(f"file:{secret(ground)}?mode=ro", uri=True)),
        "uri_escaped": lambda ground: first(
            sqlite3.connect("file:" + "".join(f"%{byte:02x}" for byte in secret(ground).encode()), uri=True)
        ),
        "uri_forged_memory": lambda ground: first(sqlite3.connect(f"file:{secret(ground)}?x=mode=memory", uri=True)),
        "uri_forged_memory_name": lambda ground: first(
            sqlite3.connect(f"file:{secret(ground)}?mode=rw&xmode=memory", uri=True)
        ),
        "uri_forged_fragment": lambda ground: first(sqlite3.connect(f"file:{secret(ground)}#mode=memory", uri=True)),
        "uri_two_modes": lambda ground: first(sqlite3.connect(f"file:{secret(ground)}?mode=memory&mode=ro", uri=True)),
        "uri_escaped_mode": lambda ground: first(
            sqlite3.connect(f"file:{secret(ground)}?mode=memory&%6dode=ro", uri=True)
        ),
        "attach_forged_memory": lambda ground: attached_uri(f"file:{secret(ground)}?x=mode=memory"),
        "uri_localhost": lambda ground: first(sqlite3.connect(f"file://localhost{secret(ground)}", uri=True)),
        "uri_dots": lambda ground: first(
            sqlite3.connect(f"file:{ground.inside}/../outside/secret.db?immutable=1", uri=True)
        ),
        "link": lambda ground: first(sqlite3.connect(f"{ground.inside}/link.db")),
        "attach": attached_text,
        "attach_parameter": lambda ground: attached(sqlite3.connect(":memory:"), secret(ground)),
        "attach_from_own": lambda ground: attached(sqlite3.connect(f"{ground.inside}/own.db"), secret(ground)),
        "attach_link": lambda ground: attached(sqlite3.connect(":memory:"), f"{ground.inside}/link.db"),
        "attach_uri": lambda ground: attached(
            sqlite3.connect("file::memory:", uri=True), f"file:{secret(ground)}?mode=ro"
        ),
        "attach_dots": lambda ground: attached(sqlite3.connect(":memory:"), f"{ground.inside}/../outside/secret.db"),
        "attach_host_connection": lambda ground: attached(ground.held.connection, secret(ground)),
        "attach_without_authorizer": without_authorizer,
        "attach_with_own_authorizer": with_own_authorizer,
        "attach_relative": lambda ground: (
            os.chdir(ground.inside) or attached(sqlite3.connect(":memory:"), "../outside/secret.db")
        ),
        "backup": backup,
    },
    "a database outside is read: {}",
    expect=SANDBOX,
    prepare=prepare,
)
attacks_of(
    {
        "connect": lambda ground: (
            sqlite3.connect(f"{ground.outside_dir}/new.db").execute("create table t (x)") and None
        ),
        "uri_create": lambda ground: (
            sqlite3.connect(f"file:{ground.outside_dir}/new.db?mode=rwc", uri=True).execute("create table t (x)")
            and None
        ),
        "vacuum_into": lambda ground: (
            sqlite3.connect(":memory:").execute(f"vacuum into '{ground.outside_dir}/new.db'") and None
        ),
        "vacuum_parameter": lambda ground: (
            sqlite3.connect(":memory:").execute("vacuum into ?", (f"{ground.outside_dir}/new.db",)) and None
        ),
        "vacuum_expression": lambda ground: (
            sqlite3.connect(":memory:").execute(f"vacuum into '{ground.outside_dir}' || '/new.db'") and None
        ),
        "vacuum_host_connection": lambda ground: (
            ground.held.connection.execute(f"vacuum into '{ground.outside_dir}/new.db'") and None
        ),
        "attach_create": lambda ground: (
            sqlite3.connect(":memory:").executescript(
                f"attach '{ground.outside_dir}/new.db' as a; create table a.t (x)"
            )
            and None
        ),
        "attach_readonly": lambda ground: (
            sqlite3.connect(":memory:").executescript(f"attach '{ground.readonly}/new.db' as a; create table a.t (x)")
            and None
        ),
        "uri_forged_read_only": lambda ground: (
            sqlite3.connect(f"file:{ground.readonly}/new.db?x=mode=ro", uri=True).execute("create table t (x)") and None
        ),
        "uri_forged_immutable": lambda ground: (
            sqlite3.connect(f"file:{ground.readonly}/immutable=1.db", uri=True).execute("create table t (x)") and None
        ),
        "attach_forged_read_only": lambda ground: (
            sqlite3.connect("file::memory:", uri=True).executescript(
                f"attach 'file:{ground.readonly}/new.db?x=mode=ro' as a; create table a.t (x)"
            )
            and None
        ),
        "backup_to": lambda ground: sqlite3.connect(":memory:").backup(sqlite3.connect(f"{ground.outside_dir}/new.db")),
        "write_through_link": lambda ground: (
            sqlite3.connect(f"{ground.inside}/link.db").executescript("create table more (x)") and None
        ),
    },
    "a database outside is made or changed: {}",
    expect=SANDBOX,
    group="write_",
    prepare=prepare,
)


attack(
    "a name that looks like a URI is taken literally",
    expect=SANDBOX.or_raises("OperationalError"),
    prepare=prepare,
    unguarded="depends on how sqlite was built",
)(attached_literally)


def computed(ground: Ground, sql: str, *parameters: object) -> object:
    """The name is put together while the statement runs; each part by itself looks allowed."""
    os.mkdir(f"{ground.inside}/x")
    os.chdir(f"{ground.inside}/x")
    connection = sqlite3.connect(":memory:")
    connection.executescript(f"create table names (k, v); insert into names values (1, '{secret(ground)}')")
    connection.execute(sql.format(inside=ground.inside), parameters)
    return first(connection, "a.t")


attacks_of(
    {
        "joined": lambda ground: computed(ground, "attach ? || ? as a", f"{ground.inside}/", "../outside/secret.db"),
        "joined_text": lambda ground: computed(ground, "attach '{inside}/' || ? as a", "../outside/secret.db"),
        "replaced": lambda ground: computed(
            ground, "attach replace(?, '#', '/../outside/') as a", f"{ground.inside}/#secret.db"
        ),
        "selected": lambda ground: computed(ground, "attach (select v from names where k = ?) as a", 1),
        "selected_plain": lambda ground: computed(ground, "attach (select v from names) as a"),
        "commented": lambda ground: computed(
            ground, "/* x */ attach ? || ? as a", f"{ground.inside}/", "../outside/secret.db"
        ),
    },
    "the name of the database is computed: {}",
    expect=SANDBOX,
    group="computed_",
    prepare=prepare,
)


@attack("a prepared attach is executed again after the policy saw a harmless one", expect=SANDBOX, prepare=prepare)
def reused_statement(ground: Ground) -> object:
    connection = sqlite3.connect(":memory:")
    database(f"{ground.inside}/harmless.db")
    statement = "attach ? as a"
    connection.execute(statement, (f"{ground.inside}/harmless.db",))
    connection.execute("detach a")
    connection.execute(statement, (secret(ground),))
    return first(connection, "a.t")


@attack(
    "a cursor made before the guard attaches",
    expect=SANDBOX,
    prepare=lambda ground: (prepare(ground), setattr(ground.held, "cursor", ground.held.connection.cursor())),
)
def cursor_of_the_host(ground: Ground) -> object:
    ground.held.cursor.execute("attach ? as a", (secret(ground),))
    return ground.held.cursor.execute("select x from a.t").fetchone()[0]


@attack(
    "the folder for temporary files of the engine is set outside",
    expect=SANDBOX.quietly,
    prepare=prepare,
    unguarded="sqlite may be built without it",
)
def temporary_folder(ground: Ground) -> None:
    connection = sqlite3.connect(f"{ground.inside}/own.db")
    connection.execute(f"pragma temp_store_directory = '{ground.outside_dir}'")
    connection.execute("pragma temp_store = 1")
    connection.executescript(
        "pragma cache_size = 1; create temp table t (x); insert into t values (randomblob(3000000));"
    )


@attack(
    "an extension of the engine is loaded from the root",
    expect=SANDBOX,
    prepare=prepare,
    unguarded="many interpreters are built without it",
)
def engine_extension(ground: Ground) -> object:
    connection = sqlite3.connect(":memory:")
    if not hasattr(connection, "enable_load_extension"):
        return open(ground.outside).read()
    connection.enable_load_extension(True)
    connection.load_extension(f"{ground.inside}/extension")
    return None


def capture(ground: Ground) -> None:
    ground.held.connect, ground.held.type = sqlite3.connect, sqlite3.Connection

    class Early(sqlite3.Connection):
        pass

    ground.held.early, ground.held.init = Early, sqlite3.Connection.__init__
    ground.held.execute = sqlite3.Connection.execute


def uninitialised(ground: Ground) -> object:
    connection = sqlite3.Connection.__new__(sqlite3.Connection)
    ground.held.init(connection, secret(ground))
    return first(connection)


attacks_of(
    {
        "connect": lambda ground: first(ground.held.connect(secret(ground))),
        "type": lambda ground: first(ground.held.type(secret(ground))),
        "subclass": lambda ground: first(ground.held.early(secret(ground))),
        "init": uninitialised,
        "execute": lambda ground: (
            ground.held.execute(sqlite3.connect(":memory:"), "attach ? as a", (secret(ground),))
            .connection.execute("select x from a.t")
            .fetchone()[0]
        ),
    },
    "a reference to the engine from before the guard is used: {}",
    expect=SANDBOX,
    group="captured_",
    early=capture,
    prepare=prepare,
)
