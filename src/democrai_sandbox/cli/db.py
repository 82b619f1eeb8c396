"""``democrai-sandbox db`` and ``admin``: the schema and keys, users and API tokens, directly in the database."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from democrai_sandbox.cli.arguments.host import USUAL_SCOPES
from democrai_sandbox.cli.arguments.options import TOKEN_FILE
from democrai_sandbox.errors import CommandMisused, CommandRefused

from .connection import configuration, database_file, database_url, open_database, shown_database, user_name
from .files import confirm, is_answerable, secret, write_whole
from .output import Exit, Mood, plural, visible

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from democrai_sandbox.access.audit import AuditReport
    from democrai_sandbox.access.encryption import Resealed
    from democrai_sandbox.access.keyring import KeyRing
    from democrai_sandbox.access.store import SqlStore
    from democrai_sandbox.access.store.schema import Schema
    from democrai_sandbox.access.values import StoredRequest
    from democrai_sandbox.host.accounts import Accounts, Person, Token
    from democrai_sandbox.host.settings import HostSettings

    from .output import CommandOutput


def run_upgrade(options: argparse.Namespace, output: CommandOutput) -> int:
    """Upgrade the schema."""
    from democrai_sandbox.access.store.schema import HEAD, upgrade_schema  # noqa: PLC0415 - takes its time

    url = database_url(options)
    before = _schema(url)
    result = {"database": shown_database(url), "from": before.version, "to": HEAD, "changed": False}
    if HEAD in before.nodes:
        return _report_upgrade(output, result, f"nothing to do: the schema is {before.version}")
    way = f"from {before.version or 'nothing'} to {HEAD}"
    if options.dry_run:
        return _report_upgrade(output, result, f"would upgrade {visible(shown_database(url))} {way}")
    confirm(f"upgrade the database {visible(shown_database(url))} {way}?", yes=options.yes)
    output.progress("upgrading; this may take a while")
    if upgrade_schema(url) == HEAD:
        return _report_upgrade(output, result, f"nothing to do: another process upgraded it {way}")
    return _report_upgrade(output, {**result, "changed": True}, f"upgraded {visible(shown_database(url))} {way}")


def _schema(url: str) -> Schema:
    """Return the schema of a database, without changing it."""
    from democrai_sandbox.access.store.database_location import parse_url  # noqa: PLC0415
    from democrai_sandbox.access.store.schema import peek_schema  # noqa: PLC0415 - takes its time
    from democrai_sandbox.errors import InvalidInputError  # noqa: PLC0415

    try:
        parse_url(url, must_exist=True)
    except InvalidInputError as error:
        raise CommandRefused(
            "; ".join(each.message for each in error.problems),
            fix="start democrai-sandbox serve once: it creates the database",
        ) from None
    return peek_schema(url)


def _report_upgrade(output: CommandOutput, result: dict[str, object], text: str) -> int:
    if not output.data("db.upgrade/1", result):
        output.line(text)
    return Exit.OK


def run_check(options: argparse.Namespace, output: CommandOutput) -> int:
    """Check the connection and the schema."""
    from democrai_sandbox.access.store.schema import HEAD  # noqa: PLC0415 - takes its time

    url = database_url(options)
    found = _schema(url)
    fits = HEAD in found.nodes
    audit = _audited(url, output) if options.audit and fits else None
    is_well = fits and (audit is None or audit.ok)
    shown = shown_database(url)
    content = {"ok": is_well, "database": shown, "version": found.version, "needed": HEAD, "audit": None}
    if audit is not None:
        content["audit"] = {"ok": audit.ok, "records": audit.count, "first_bad": audit.first_bad, "what": audit.what}
    if output.data("db.check/1", content):
        return Exit.OK if is_well else Exit.FAILED
    output.line(f"{visible(shown)} answers")
    if fits:
        output.line(f"schema {found.version} is current", Mood.OK)
    else:
        output.line(f"schema {found.version or 'missing'}, but {HEAD} is required", Mood.BAD)
        output.say("run democrai-sandbox db upgrade, unless a newer version created it")
    if audit is not None and audit.ok:
        output.line(f"audit: {audit.count} records, the hash chain is valid", Mood.OK)
    elif audit is not None:
        output.line(f"audit: the hash chain is broken at record {audit.first_bad}: {visible(audit.what)}", Mood.BAD)
    return Exit.OK if is_well else Exit.FAILED


def _audited(url: str, output: CommandOutput) -> AuditReport:
    from democrai_sandbox.access.audit import verify_store  # noqa: PLC0415 - takes its time

    with open_database(url) as store:
        output.progress("reading the audit")
        return verify_store(store)


def run_backup(options: argparse.Namespace, output: CommandOutput) -> int:
    """Copy a SQLite database to a file."""
    from democrai_sandbox.access.store.database_location import copy_database  # noqa: PLC0415 - takes its time

    url = database_url(options)
    file = database_file(url)
    if not file:
        raise CommandRefused("db backup copies SQLite databases only", fix="use pg_dump for PostgreSQL")
    if not _schema(url).version:  # any version: an older database is copied before it is upgraded
        what = f"the database {shown_database(url)} is not a database of democrai-sandbox"
        raise CommandRefused(what, fix="name another one")
    output.progress("copying")
    size = copy_database(file, options.file)
    if not output.data("db.backup/1", {"database": shown_database(url), "file": options.file, "bytes": size}):
        output.line(f"{visible(options.file)}: {size} bytes")
        output.say("the copy does not contain the key file: back it up as well, in another place")
    return Exit.OK


def run_rotate_key(options: argparse.Namespace, output: CommandOutput) -> int:
    """Run one step of the rotation."""
    file = _key_file(options)
    with open_database(database_url(options)) as store:
        rotation = _Rotation(options, output, file, _ring(file), store)
        if options.introduce:
            return rotation.introduce()
        return rotation.retire() if options.retire else rotation.exchange()


def _ring(file: str) -> KeyRing:
    from democrai_sandbox.access.keyring import KeyRing  # noqa: PLC0415 - takes its time

    try:
        return KeyRing.read(file)
    except FileNotFoundError:
        raise CommandRefused(
            f"the key file {visible(file)} does not exist", fix="start a node, which creates it, or add --key-file FILE"
        ) from None


def _key_file(options: argparse.Namespace) -> str:
    if options.key_file is not None:
        return str(options.key_file)
    if options.database is not None:
        raise CommandMisused("--database needs a key file", fix="add --key-file FILE")
    return configuration(options).settings.key_file


class _Rotation:
    """One step of the rotation.

    With one key file for all nodes, this is one step. If each node has a copy, there are three steps, and the file is
    copied to all nodes after each: ``--introduce``, ``--use ID``, ``--retire``. No node encrypts with a key that
    another node does not have.

    A node encrypts inside the transaction that stores the data, one at a time (``Store.settle``). After waiting for
    that, and with the new key first in the file of every node, nothing more is encrypted with an old key.
    """

    def __init__(
        self, options: argparse.Namespace, output: CommandOutput, file: str, ring: KeyRing, store: SqlStore
    ) -> None:
        self._options = options
        self._output = output
        self._file = file
        self._ring = ring
        self._store = store
        self._used = _count_key_use(store)

    def introduce(self) -> int:
        from democrai_sandbox.access.keyring import introduce  # noqa: PLC0415 - takes its time

        if not self._goes_on(f"add a key to {visible(self._file)} without using it yet"):
            return Exit.OK
        self._ring = introduce(self._file)
        new = self._ring.keys[-1].id
        then = f"democrai-sandbox db rotate-key --use {new}"
        self._output.say(f"copy {visible(self._file)} to every node, then run: {then}")
        return self._told(f"added the key {new}")

    def exchange(self) -> int:
        from democrai_sandbox.access.keyring import promote, rotate  # noqa: PLC0415 - takes its time

        wanted = self._options.use
        if wanted is not None and self._ring.find(wanted) is None:
            known = ", ".join(key.id for key in self._ring.keys)
            raise CommandMisused(f"{self._file} has no key {wanted!r}", fix=f"name one of {known}")
        key = f"the key {wanted}" if wanted else "a new key"
        kept = _stored(self._used.contexts.total(), self._used.models.total())
        if not self._goes_on(f"encrypt with {key} from now on, and {kept} with it"):
            return Exit.OK
        self._ring = promote(self._file, wanted) if wanted else rotate(self._file)
        done, models = self._resealed()
        text = f"{self._ring.first.id} encrypts from now on; re-encrypted: {_stored(done.replaced, models.replaced)}"
        status = self._told(text, done=done, models=models)
        if done.unreadable or models.unreadable:
            unchanged = _stored(len(done.unreadable), len(models.unreadable))
            self._output.say(f"no key decrypts {unchanged}; left unchanged")
        return status

    def retire(self) -> int:
        from democrai_sandbox.access.keyring import retire  # noqa: PLC0415 - takes its time

        for key in self._ring.keys[1:]:
            if key.introduced:
                self._output.say(f"{key.id} stays: it was introduced and is not in use yet")
        old = self._unused([key.id for key in self._ring.keys[1:] if not key.introduced])
        if not old:
            return self._told("no key to remove", changed=False)
        if not self._goes_on(f"permanently remove {_keys(old)} from {visible(self._file)}"):
            return Exit.OK
        self._store.settle()  # nodes continued during the question
        self._used = _count_key_use(self._store)
        old = self._unused(old)
        for unused in old:
            self._ring = retire(self._file, unused)
        return self._told(f"removed {_keys(old)}" if old else "no key to remove", changed=bool(old))

    def _unused(self, keys: list[str]) -> list[str]:
        """Return the keys that encrypt nothing, and report the others."""
        for key in keys:
            if self._used.count(key):
                kept = _stored(self._used.contexts[key], self._used.models[key])
                self._output.say(f"{key} stays: it encrypts {kept}")
        return [key for key in keys if not self._used.count(key)]

    def _resealed(self) -> tuple[Resealed, Resealed]:
        """Re-encrypt contexts and model keys, and return the counts."""
        from democrai_sandbox.access.encryption import Resealed, Sealer, reseal_all  # noqa: PLC0415 - takes its time
        from democrai_sandbox.host.extension_admin import reseal_model_keys  # noqa: PLC0415
        from democrai_sandbox.runtime.store import RuntimeStore  # noqa: PLC0415

        self._output.progress("encrypting stored data")
        done = reseal_all(self._store, Sealer(lambda: self._ring))
        models = Resealed(*reseal_model_keys(RuntimeStore(self._store.database), self._ring))
        self._used = _count_key_use(self._store)
        return done, models

    def _goes_on(self, what: str) -> bool:
        """Report the change in a dry run, or ask for confirmation."""
        if self._options.dry_run:
            self._told(f"would {what}", changed=False)
            return False
        confirm(f"{what}?", yes=self._options.yes)
        return True

    def _told(
        self, text: str, *, changed: bool = True, done: Resealed | None = None, models: Resealed | None = None
    ) -> int:
        keys = [
            {
                "id": key.id,
                "encrypts": key is self._ring.first,
                "introduced": key.introduced,
                "contexts": self._used.contexts[key.id],
                "model_keys": self._used.models[key.id],
            }
            for key in self._ring.keys
        ]
        content = {
            "key_file": self._file,
            "changed": changed,
            "keys": keys,
            "replaced": done.replaced if done else 0,
            "unreadable": list(done.unreadable) if done else [],
            "replaced_model_keys": models.replaced if models else 0,
            "unreadable_model_keys": list(models.unreadable) if models else [],
        }
        if not self._output.data("db.rotate-key/1", content):
            self._output.line(text)
        return Exit.OK


class _KeyUse(NamedTuple):
    """Number of stored values per key."""

    contexts: Counter[str]
    models: Counter[str]

    def count(self, key: str) -> int:
        return self.contexts[key] + self.models[key]


def _count_key_use(store: SqlStore) -> _KeyUse:
    """Count the stored values without changing them."""
    from democrai_sandbox.access.encryption import DecryptionError, encrypted_with  # noqa: PLC0415 - takes its time
    from democrai_sandbox.runtime.store import RuntimeStore  # noqa: PLC0415

    found = _KeyUse(Counter(), Counter())

    def key_of(blob: bytes) -> str:
        try:
            return encrypted_with(blob)
        except DecryptionError:
            return ""

    def count(_: StoredRequest, blob: bytes) -> None:
        found.contexts[key_of(blob)] += 1

    store.replace_contexts(count)
    found.models.update(key_of(one.sealed_key) for one in RuntimeStore(store.database).models() if one.sealed_key)
    return found


def _keys(ids: list[str]) -> str:
    return f"the key{'' if len(ids) == 1 else 's'} {', '.join(ids)}"


def _stored(contexts: int, models: int) -> str:
    """Return the counts as text; model keys only if there are any."""
    parts = [plural(contexts, "stored context")] if contexts or not models else []
    return " and ".join([*parts, *([plural(models, "model key")] if models else [])])


@contextmanager
def open_accounts(options: argparse.Namespace, *, create: bool = False) -> Iterator[tuple[Accounts, HostSettings]]:
    """Open the accounts, and their settings, without a node and beside one; ``create`` creates a missing database.

    An application that manages its own users does not use these accounts.
    """
    settings = configuration(options).settings
    with open_database(settings.database, settings, create=create) as store:
        from democrai_sandbox.access.node import utc_now  # noqa: PLC0415 - takes its time
        from democrai_sandbox.host.accounts import Accounts  # noqa: PLC0415

        # Other nodes notice the change when they poll, after a second at most by default.
        accounts = Accounts(
            store.database,
            settings,
            on_session_end=lambda session: store.end_session(session, actor=audit_actor(), now=utc_now()),
        )
        yield accounts, settings


def audit_actor() -> str:
    """Return the user name for the audit log."""
    return f"cli:{user_name(os.getuid())}"


def run_create(options: argparse.Namespace, output: CommandOutput) -> int:
    """Add a user."""
    from democrai_sandbox.host.accounts.store import check_name  # noqa: PLC0415 - takes its time

    name = check_name(options.name)  # before the user types a password
    password = _password(options, name)
    with open_accounts(options, create=True) as (accounts, settings):
        person = accounts.create_person(
            name, password, role=options.role or "", organization_id=options.organization, actor=audit_actor()
        )
        decides = any(one.may_decide for one in accounts.people())
    _report_user(output, "admin.create/1", person, f"added {person.id}", password if options.generate else "")
    if not decides:
        output.say("no user may decide yet: add one with --role super", Mood.WARNING)
    if not settings.console.enabled:
        output.say("console.enabled is off: users cannot sign in with a password, but programs can use tokens")
    return Exit.OK


def run_passwd(options: argparse.Namespace, output: CommandOutput) -> int:
    """Set a new password."""
    with open_accounts(options) as (accounts, _):
        person = accounts.person(options.name)
        password = _password(options, person.id)
        accounts.reset_password(person.id, password, actor=audit_actor())
    told = f"{person.id} has a new password and is signed out everywhere"
    _report_user(output, "admin.passwd/1", person, told, password if options.generate else "")
    return Exit.OK


def run_disable(options: argparse.Namespace, output: CommandOutput) -> int:
    """Disable a user."""
    with open_accounts(options) as (accounts, _):
        person = accounts.person(options.name)
        confirm(f"disable {person.id} and end all sessions of this user?", yes=options.yes)
        person = accounts.disable(person.id, actor=audit_actor())
    _report_user(output, "admin.disable/1", person, f"{person.id} is disabled")
    return Exit.OK


def run_enable(options: argparse.Namespace, output: CommandOutput) -> int:
    """Enable a disabled user."""
    with open_accounts(options) as (accounts, _):
        person = accounts.enable(options.name, actor=audit_actor())
    _report_user(output, "admin.enable/1", person, f"{person.id} can sign in again")
    return Exit.OK


def run_list(options: argparse.Namespace, output: CommandOutput) -> int:
    """List users."""
    with open_accounts(options) as (accounts, _):
        people = accounts.people()
    if not output.data("admin.list/1", {"people": [_user_dict(person) for person in people]}):
        output.table(("NAME", "ROLE", "STATE", "SINCE"), map(_user_row, people), {"disabled": Mood.WARNING})
    return Exit.OK


def _user_row(person: Person) -> tuple[str, ...]:
    state = "may decide" if person.may_decide else "may read"
    shown = state if person.disabled_at is None else "disabled"
    return (person.id, person.role or person.access_level or "-", shown, _day(person.created_at))


def _report_user(output: CommandOutput, schema: str, person: Person, text: str, password: str = "") -> None:
    if output.data(schema, {"person": _user_dict(person), **({"password": password} if password else {})}):
        return
    if password:
        output.say(text)
        output.line(password)
    else:
        output.line(visible(text))


def _user_dict(person: Person) -> dict[str, object]:
    return {
        "name": person.id,
        "role": person.role,
        "access_level": person.access_level,
        "organization_id": person.organization_id,
        "may_decide": person.may_decide,
        "disabled": person.disabled_at is not None,
        "created_at": person.created_at.isoformat(),
    }


def _password(options: argparse.Namespace, name: str) -> str:
    """Return a valid password: generated, typed twice, or the first line of standard input."""
    from democrai_sandbox.host.accounts.passwords import check_password, random_password  # noqa: PLC0415 - takes long

    if options.generate:
        return random_password()
    password = secret(f"password for {name}: ")
    if not password:
        raise CommandMisused("no password was given", fix="type one, write it to standard input, or add --generate")
    check_password(password, name)
    if is_answerable() and secret("repeat the password: ") != password:
        raise CommandRefused("the passwords differ, and nothing was changed")
    return password


_MOST_DAYS = 3650


def run_create_token(options: argparse.Namespace, output: CommandOutput) -> int:
    """Create a token."""
    if not 0 <= options.days <= _MOST_DAYS:
        raise CommandMisused(
            f"--days must be a number from 0 to {_MOST_DAYS}", fix="remove it, or use 0 for a token that never expires"
        )
    lifetime = timedelta(days=options.days) if options.days else None
    with open_accounts(options) as (accounts, settings):
        owner = _owner(accounts, options.user)
        token, secret = accounts.create_token(
            owner, options.label, options.scope or USUAL_SCOPES, lifetime, actor=audit_actor()
        )
        saved = ""
        if options.save:
            try:
                saved = _saved(secret, settings.state_dir)
            except BaseException:
                accounts.revoke_token(token.id, audit_actor())  # the token was not delivered
                raise
    kept = {"saved": saved} if saved else {"secret": secret}
    if output.data("admin.token.create/1", {"token": _token_dict(token), **kept}):
        return Exit.OK
    if saved:
        output.line(visible(f"the token for {owner} is in {saved}"))
    else:
        output.say(f"token for {owner}, shown only once:")
        output.line(secret)
    return Exit.OK


def _owner(accounts: Accounts, name: str | None) -> str:
    """Return the owner of a token: the named user, or the only user who may decide."""
    if name is not None:
        return accounts.person(name).id
    able = [person.id for person in accounts.people() if person.may_decide]
    if len(able) == 1:
        return able[0]
    if not able:
        raise CommandRefused("no user may decide yet", fix="democrai-sandbox admin create NAME --role super")
    raise CommandMisused("several users may decide", fix=f"add --user with one of {', '.join(able)}")


def _saved(secret: str, folder: str) -> str:
    """Write the token to the default file, readable by its owner only."""
    file, fix = f"{folder}/{TOKEN_FILE}", "check the owner of the folder"
    try:
        os.makedirs(folder, 0o700, exist_ok=True)  # noqa: PTH103 - a text
        is_ours = os.stat(folder).st_uid == os.geteuid()  # noqa: PTH116 - the same
    except OSError as error:
        raise CommandRefused(f"{visible(file)} cannot be written: {error.strerror}", fix=fix) from None
    if not is_ours:
        raise CommandRefused(f"the state folder {folder} belongs to another user", fix="run this as its owner")
    with write_whole(file, fix=fix) as stream:
        stream.write(f"{secret}\n".encode("ascii"))
    return file


def run_list_tokens(options: argparse.Namespace, output: CommandOutput) -> int:
    """List tokens."""
    with open_accounts(options) as (accounts, _):
        people = [accounts.person(options.user)] if options.user else accounts.people()
        tokens = [token for person in people for token in accounts.tokens_of(person.id)]
    if not output.data("admin.token.list/1", {"tokens": [_token_dict(token) for token in tokens]}):
        output.table(("ID", "USER", "LABEL", "USED", "UNTIL", "SCOPES"), map(_token_row, tokens))
    return Exit.OK


def run_revoke_token(options: argparse.Namespace, output: CommandOutput) -> int:
    """Revoke a token."""
    with open_accounts(options) as (accounts, _):
        found = [each for person in accounts.people() for each in accounts.tokens_of(person.id)]
        token = next((each for each in found if each.id == options.id), None)
        if token is None:
            raise CommandRefused("the token does not exist", fix="use an id from admin token list")
        confirm(f"revoke the token {visible(token.label)!r} of {token.person_id}?", yes=options.yes)
        accounts.revoke_token(token.id, audit_actor())
    if not output.data("admin.token.revoke/1", {"token": _token_dict(token)}):
        output.line(visible(f"revoked the token {token.label!r} of {token.person_id}"))
    return Exit.OK


def _token_row(token: Token) -> tuple[str, ...]:
    until = _day(token.expires_at) if token.expires_at else "never"
    shown = until if token.ended_at is None else "revoked"
    return (token.id, token.person_id, token.label, _day(token.last_used), shown, " ".join(sorted(token.scopes)))


def _day(time: object) -> str:
    return f"{time:%Y-%m-%d}" if time else "-"


def _token_dict(token: Token) -> dict[str, object]:
    times = {"created_at": token.created_at, "expires_at": token.expires_at, "last_used": token.last_used}
    return {
        "id": token.id,
        "user": token.person_id,
        "label": token.label,
        "scopes": sorted(token.scopes),
        **{name: time.isoformat() if time else None for name, time in times.items()},
        "revoked": token.ended_at is not None,
    }
