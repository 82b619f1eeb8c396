"""Starting a host, and talking to it from the command line."""

from __future__ import annotations

from .entry import Entry, Layer

HOSTING = (
    Entry(
        code="config_invalid",
        title="The configuration was refused",
        layer=Layer.HOST,
        meaning=(
            "The configuration was refused as a whole: nothing was started, made or changed. `problems` "
            "lists everything that is wrong with it, each with its `origin`: the file and line, the variable "
            "or the argument that it stands in."
        ),
        cause=(
            "A key that does not exist, a value of another type than the key takes, a folder that is not "
            "there, a file that others than its owner can write, YAML that could be read in two ways. An "
            "address beyond the machine itself without `https`."
        ),
        fix=(
            "Correct what each line names; configuration.md has all keys. Passwords in URLs are never repeated "
            "in the text."
        ),
        classes=("ConfigInvalid",),
        remark="An `InvalidInputError`.",
        see=("configuration.md",),
    ),
    Entry(
        code="host_refused",
        title="The host does not start",
        layer=Layer.HOST,
        meaning="The host does not start, though its configuration is sound. Nothing was changed.",
        cause=(
            "Something outside the configuration stands in the way; the text names it. The codes below are "
            "special cases."
        ),
        fix='What the text says after "to fix it".',
        classes=("HostRefused",),
        remark="A `RuntimeError`. `what` says what is wrong, `fix` what to do about it.",
    ),
    Entry(
        code="host_state_unusable",
        title="The state folder cannot be used",
        layer=Layer.HOST,
        meaning="A folder, file or database that the host keeps its state in cannot be made, read or written.",
        cause=(
            "`state_dir` or a folder above it belongs to another user, is read-only or is a file; the disk is "
            "full; another process has the state in use already; or the PostgreSQL database has another encoding "
            "than UTF8."
        ),
        fix=(
            "Give the host a folder of its own user, by `state_dir`, or end the other process. A database is made "
            "with `CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0`."
        ),
        classes=("StateUnusable",),
        remark="A `HostRefused`.",
    ),
    Entry(
        code="host_database_unreachable",
        title="The database server cannot be reached",
        layer=Layer.HOST,
        meaning="The PostgreSQL server of `database.url` did not answer within `database.wait_seconds`.",
        cause=(
            "The server is not up yet, is down, cannot be reached from this machine, or refuses the name, the password "
            "or the database; the text has what it said."
        ),
        fix=(
            "Start the server, or correct `database.url`. To wait longer for it, raise `database.wait_seconds`. "
            "`democrai-sandbox serve` ends with 3, after which a service manager can try again."
        ),
        classes=("DatabaseUnreachable",),
        remark="A `StateUnusable`.",
    ),
    Entry(
        code="host_address_taken",
        title="The address cannot be listened at",
        layer=Layer.HOST,
        meaning="The host cannot listen at `server.host` and `server.port`.",
        cause=(
            "Another program listens there, perhaps an earlier start of the same host; the address is none of "
            "this machine's; or a port below 1024 was asked for without the right to it."
        ),
        fix="End the other program, or set `server.port` to another port; 0 takes any free one.",
        classes=("AddressTaken",),
        remark="A `HostRefused`.",
    ),
    Entry(
        code="command_refused",
        title="A command was not carried out",
        layer=Layer.COMMAND,
        meaning="A command of the command line was not carried out. Nothing was changed.",
        cause=(
            "The text names it: a question that was answered with no, a file that others may read, something "
            "that is not there."
        ),
        fix='What the text says after "to fix it".',
        classes=("CommandRefused",),
    ),
    Entry(
        code="command_misused",
        title="A command cannot be carried out as it was given",
        layer=Layer.COMMAND,
        meaning="A command cannot be carried out as it was given.",
        cause="Its arguments, or a question that nobody can answer because there is no terminal.",
        fix=(
            "What the text says; `--help` of the command lists its options. In scripts, `--yes` answers the question."
        ),
        classes=("CommandMisused",),
        remark="A `CommandRefused`. The command ends with the exit status 2.",
    ),
    Entry(
        code="node_unreachable",
        title="No node answers",
        layer=Layer.COMMAND,
        meaning=(
            "No node answers at the address, or what answers is none. Whether a change that was sent was "
            "made is not known."
        ),
        cause="The node does not run, listens elsewhere, or a proxy stands between.",
        fix="See that it runs, or name another one with `--url` or `DEMOCRAI_URL`.",
        classes=("NodeUnreachable",),
        remark="The command ends with the exit status 3.",
    ),
    Entry(
        code="node_refused",
        title="A node said no",
        layer=Layer.COMMAND,
        meaning="A node said no to what a command asked for. The text begins with the code of the error there.",
        cause="As that code says: often a token without the scope, or an id that is not there.",
        fix="Look that code up.",
        classes=("NodeRefused",),
    ),
    Entry(
        code="error_unknown",
        title="This is none of our errors",
        layer=Layer.COMMAND,
        meaning="A line or a code that was to be explained is none of our errors. Nothing was guessed.",
        cause="The line comes from another program, or the part with the code was cut off.",
        fix=(
            "Give the whole line, as it stands in the log or at the end of the traceback. The index of the codes "
            "lists all there are."
        ),
        classes=("ErrorUnknown",),
    ),
)
