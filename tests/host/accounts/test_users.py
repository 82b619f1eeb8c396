"""Users: add, change, disable; at least one administrator always remains."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from democrai_sandbox.access.audit import verify_store
from democrai_sandbox.errors import AccountConflict, AccountUnknown, InvalidInputError, SignInRefused
from democrai_sandbox.host.authentication import Roles
from tests.access.store.samples import sql
from tests.host.accounts.conftest import PASSWORD
from tests.services.golden import sentence
from tests.services.rows import rows


def test_the_first_administrator_is_made_once_and_can_sign_in(house):
    """Without users an administrator is created with a random password; later none is."""
    found = house.accounts.first_administrator()
    assert found.name == "admin"
    assert len(found.password) > 20
    assert found.password not in repr(found)
    assert house.accounts.first_administrator() is None
    assert house.sign_in("admin", found.password).user.may_decide


def test_nodes_that_start_together_make_one_first_administrator(house):
    """One of several nodes on an empty database gets the password."""
    nodes = [house.node() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = [one for one in pool.map(lambda node: node.first_administrator(), nodes) if one is not None]
    assert len(found) == 1
    assert [person.name for person in house.accounts.people()] == ["admin"]
    assert house.sign_in("admin", found[0].password).user.may_decide


def test_nobody_is_made_where_somebody_was_shut_out(house):
    """If all users are disabled, a restart creates no new administrator."""
    house.person("ada")
    house.accounts.disable("ada", actor="tests")
    assert house.accounts.first_administrator() is None


def test_roles_are_looked_up_as_they_are_now(house):
    """A role change counts from the next lookup; an unknown or disabled user has no roles."""
    house.person("ada", role="super")
    house.person("bea", role="super")
    assert house.accounts.roles("ada") == Roles("ada", "super", "", "")
    house.accounts.set_role("ada", organization_id="acme", actor="bea")
    assert house.accounts.roles("ada") == Roles("ada", "", "", "acme")
    house.accounts.disable("ada", actor="bea")
    assert house.accounts.roles("ada") is None
    house.accounts.enable("ada", actor="bea")
    assert house.accounts.roles("ada") is not None
    assert house.accounts.roles("nobody-of-that-name") is None


def test_the_last_administrator_stays_one(house):
    """A change that would leave no administrator is refused, and nothing is changed."""
    house.person("ada", role="super")
    house.person("uma")
    house.person("otto", role="super", organization_id="acme")
    house.person("gone", role="super")
    house.accounts.disable("gone", actor="ada")
    session = house.sign_in()
    for change in (
        lambda accounts: accounts.disable("ada", actor="ada"),
        lambda accounts: accounts.set_role("ada", actor="ada"),
        lambda accounts: accounts.set_role("ada", role="super", organization_id="acme", actor="ada"),
    ):
        with pytest.raises(AccountConflict) as caught:
            change(house.accounts)
        sentence("last administrator", str(caught.value))
        assert house.accounts.person("ada").may_decide
        assert house.with_cookie(session.token) is not None


def test_two_administrators_cannot_shut_each_other_out_at_once(house):
    """On two nodes at the same time, one of the two changes succeeds."""
    house.person("ada", role="super")
    house.person("bea", role="super")
    nodes = [house.node(), house.node()]

    def shut_out(node, who):
        try:
            node.disable(who, actor="tests")
        except AccountConflict:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(shut_out, nodes, ["ada", "bea"]))
    assert sorted(done) == [False, True]
    assert sum(person.may_decide for person in house.accounts.people()) == 1


@rows(
    "name",
    ["", " ", "Ada", "a b", "ada\n", "ada\0", "system", "nobody", "module:x", "-ada", "ada.", "аda", "a" * 65, None, 7],
)
def test_names_that_could_be_taken_for_something_else_are_refused(house, name):
    """Lower-case ASCII letters, digits and four signs: a name occurs in the audit log beside other words."""
    with pytest.raises(InvalidInputError) as caught:
        house.accounts.create_person(name, PASSWORD, actor="tests")
    assert caught.value.problems[0].pointer == "/name"
    assert house.accounts.people() == ()


def test_a_refused_name_comes_with_one_that_would_do(house):
    """A name with a capital letter gets the suggestion in lower case."""
    with pytest.raises(InvalidInputError) as caught:
        house.accounts.create_person("Ada Lovelace", PASSWORD, actor="tests")
    assert caught.value.problems[0].suggestion == "ada-lovelace"


@rows(
    ("given", "pointer"),
    [
        ({"role": "admin"}, "/role"),
        ({"access_level": "root"}, "/access_level"),
        ({"organization_id": "a\u202eb\n"}, "/organization_id"),
        ({"organization_id": "x" * 101}, "/organization_id"),
        ({"organization_id": None}, "/organization_id"),
    ],
)
def test_what_a_person_is_has_known_values(house, given, pointer):
    """An unknown role is refused, with its pointer."""
    with pytest.raises(InvalidInputError) as caught:
        house.person("ada", **given)
    assert caught.value.problems[0].pointer == pointer
    assert house.accounts.people() == ()


def test_a_name_is_taken_once(house):
    """The second user with that name is refused, and the first keeps the password."""
    house.person("ada")
    with pytest.raises(AccountConflict, match="ada"):
        house.accounts.create_person("ada", "something else altogether", actor="tests")
    assert house.sign_in().user.id == "ada"


def test_somebody_who_is_not_there_is_unknown(house):
    """Every change of an unknown user raises this error."""
    for act in (
        lambda: house.accounts.disable("ada", actor="tests"),
        lambda: house.accounts.enable("ada", actor="tests"),
        lambda: house.accounts.set_role("ada", actor="tests"),
        lambda: house.accounts.reset_password("ada", actor="tests"),
        lambda: house.accounts.create_token("ada", "x", ["status:read"]),
    ):
        with pytest.raises(AccountUnknown):
            act()


def test_shutting_somebody_out_ends_everything_they_have(house):
    """Sessions end with their approvals, tokens stop working; an enabled user must sign in again."""
    house.person("ada")
    signed_in = house.sign_in()
    _, secret = house.accounts.create_token("ada", "ci", ["status:read"])
    house.accounts.disable("ada", actor="bea")
    assert house.with_cookie(signed_in.token) is None
    assert house.with_token(secret) is None
    assert house.ended == [signed_in.session.id]
    with pytest.raises(SignInRefused):
        house.sign_in()
    house.accounts.enable("ada", actor="bea")
    assert house.with_cookie(signed_in.token) is None
    assert house.with_token(secret).user_id == "ada"


def test_a_password_is_changed_by_who_knows_it(house):
    """A wrong current password changes nothing; the right one ends all other sessions."""
    house.person("ada")
    here, elsewhere = house.sign_in(), house.sign_in()
    with pytest.raises(SignInRefused):
        house.accounts.change_password(here.session.id, "not the password", "a whole new password")
    house.accounts.change_password(here.session.id, PASSWORD, "a whole new password")
    assert house.with_cookie(here.token) is not None
    assert house.with_cookie(elsewhere.token) is None
    with pytest.raises(SignInRefused):
        house.sign_in()
    assert house.sign_in(password="a whole new password").user.id == "ada"


def test_a_reset_password_is_random_and_ends_all_sessions(house):
    """The new password works immediately, and all sessions have ended."""
    house.person("ada")
    session = house.sign_in()
    secret = house.accounts.reset_password("ada", actor="bea")
    assert house.with_cookie(session.token) is None
    assert house.sign_in(password=secret).user.id == "ada"


def test_the_audit_tells_who_changed_whom_without_secrets(house):
    """Additions, changes and passwords are recorded with actor, before and after, without passwords and hashes."""
    house.person("ada", role="super")
    house.person("bea", role="super")
    house.accounts.set_role("ada", organization_id="acme", actor="bea")
    house.accounts.reset_password("ada", actor="bea")
    told = [(action, actor, after["person"]) for action, actor, after in house.audit()]
    assert told == [
        ("added", "tests", "ada"),
        ("added", "tests", "bea"),
        ("changed", "bea", "ada"),
        ("password_changed", "bea", "ada"),
    ]
    changed = list(house.stores[0].audit_rows())[2]
    assert (changed.before["role"], changed.after["role"]) == ("super", "")
    assert (changed.before["organization_id"], changed.after["organization_id"]) == ("", "acme")
    everything = repr(house.audit())
    assert PASSWORD not in everything
    assert "argon2" not in everything
    assert verify_store(house.stores[0]).ok


def test_no_password_is_in_the_database(house):
    """The stored value is an Argon2id hash with a separate salt."""
    house.person("ada")
    house.person("bea")
    kept = [row[0] for row in sql(house.url, "SELECT password FROM host_people")]
    assert all(text.startswith("$argon2id$v=19$m=64,t=1,p=1$") for text in kept)
    assert len(set(kept)) == 2
