"""Errors that keep a host from starting."""

from __future__ import annotations

from democrai_sandbox.policy import InvalidInputError, SandboxError


class ConfigInvalid(InvalidInputError):
    """The configuration is invalid.

    Nothing was started or changed. ``problems`` lists every problem with its ``origin``: the file and line, the
    variable, or the argument. Passwords in URLs are never shown.
    """

    code = "config_invalid"
    guidance = """
    Cause: An unknown key, a value of the wrong type, a missing folder, a file that other users can write, ambiguous
    YAML, or an address beyond this machine without `https`.
    Fix: Correct every line that the text names. `democrai-sandbox config check` shows the same list.
    Example:
    server:
      prot: 8420
    -> config_invalid: 1 problem
         - config.yaml:2: /server/prot: unknown key 'prot' (did you mean 'port'?)
    See: configuration.md
    """


class HostRefused(SandboxError, RuntimeError):
    """The host does not start.

    The configuration is valid, but a condition outside of it is not met. Nothing was changed. ``what`` is the reason,
    ``fix`` the next action.
    """

    code = "host_refused"
    guidance = """
    Cause: A package is missing, a component was started twice, or another condition that the text names.
    Fix: Follow the text after "to fix it".
    Example:
    $ democrai-sandbox serve     # installed without the extra
    host_refused: the package 'fastapi' is missing
      to fix it: pip install 'democrai-sandbox[console]'
    See: serving.md
    """

    def __init__(self, what: str, *, fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.fix = fix

    def diagnostics(self) -> str:
        """Return the reason, with the next action on the line below."""
        head = f"{self.code}: {self.what}"
        return f"{head}\n  to fix it: {self.fix}" if self.fix else head


class StateUnusable(HostRefused):
    """The state folder, a file in it, or the database cannot be used.

    The host does not start, because it could not keep its state.
    """

    code = "host_state_unusable"
    guidance = """
    Cause: `state_dir` or a parent folder belongs to another user, is read-only or is a file; the disk is full; another
    process uses the same state; or the PostgreSQL database is not encoded in UTF8.
    Fix: Set `state_dir` to a folder of the user that runs the host, or stop the other process. Create a database with
    `CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0`.
    Example:
    $ sudo -u nobody democrai-sandbox serve     # state_dir belongs to the user app
    host_state_unusable: ... Permission denied
    See: configuration.md
    """


class DatabaseUnreachable(StateUnusable):
    """The database server cannot be reached.

    The PostgreSQL server of ``database.url`` did not answer within ``database.wait_seconds``. The exit status is 3, so
    that a service manager can retry.
    """

    code = "host_database_unreachable"
    guidance = """
    Cause: The server is down, not up yet or not reachable from this machine, or refuses the user, the password or the
    database. The text has its answer.
    Fix: Start the server, correct `database.url`, or raise `database.wait_seconds` to wait longer.
    Example:
    $ DEMOCRAI_CONFIG__DATABASE__URL=postgresql://app@db.example.com/sandbox democrai-sandbox serve
    host_database_unreachable: the database ... cannot be used: connection refused
    See: deployment.md
    """


class AddressTaken(HostRefused):
    """The host cannot listen at its address.

    ``server.host`` and ``server.port`` name the address. Nothing was started.
    """

    code = "host_address_taken"
    guidance = """
    Cause: Another program listens there, perhaps an earlier start of this host; the address does not belong to this
    machine; or a port below 1024 needs more rights.
    Fix: Stop the other program, or set `server.port` to another port. Port 0 takes any free one.
    Example:
    $ democrai-sandbox serve     # twice
    host_address_taken: cannot listen at 127.0.0.1:8420: Address already in use
    See: serving.md
    """
