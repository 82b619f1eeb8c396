"""Section ``sandbox.os``: valid values, and problems with their pointers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from democrai_sandbox.kernel import LandlockSettings, OsSettings, SeccompSettings, os_settings
from democrai_sandbox.policy import InvalidInputError
from tests.services.golden import sentence
from tests.services.rows import rows


def problems(section):
    with pytest.raises(InvalidInputError) as refused:
        os_settings(section)
    return {problem.pointer: str(problem) for problem in refused.value.problems}


@rows("section", [None, {}])
def test_nothing_is_on_that_is_not_asked_for(section):
    """Without the section, and with an empty one, every control is off and names are refreshed each minute."""
    settings = os_settings(section)
    assert settings == OsSettings()
    assert not (settings.enabled or settings.require or settings.seccomp.enabled or settings.landlock.enabled)
    assert settings.refresh_seconds == 60


@rows("section", [None, {}, {"landlock": {"enabled": True}}])
def test_children_are_confined_unless_that_is_disabled(section):
    """Without a value the spawn server is wanted but not needed: a machine that cannot confine still starts."""
    settings = os_settings(section)
    assert settings.enabled is None
    assert settings.wants_spawn_server and not settings.needs_spawn_server


def test_the_documented_section_is_read_as_it_stands():
    """The documented process restrictions and network keys are in the settings."""
    settings = os_settings(
        {
            "enabled": True,
            "policy_file": "/var/lib/democrai/os_sandbox_allowlist.json",
            "helper_socket": "/run/democrai/os_sandbox_helper.sock",
            "refresh_seconds": 0,
            "require": True,
            "desktop": True,
            "seccomp": {"enabled": True},
            "landlock": {
                "enabled": True,
                "extra_read_paths": ["/opt/democrai/read-only"],
                "extra_write_paths": ["/srv/democrai/work"],
            },
        }
    )
    assert settings == OsSettings(
        enabled=True,
        policy_file="/var/lib/democrai/os_sandbox_allowlist.json",
        helper_socket="/run/democrai/os_sandbox_helper.sock",
        refresh_seconds=0,
        require=True,
        desktop=True,
        seccomp=SeccompSettings(enabled=True),
        landlock=LandlockSettings(
            enabled=True,
            extra_read_paths=("/opt/democrai/read-only",),
            extra_write_paths=("/srv/democrai/work",),
        ),
    )


@rows(
    ("enabled", "seccomp", "wanted"),
    [(False, False, False), (True, False, True), (False, True, True), (True, True, True)],
)
def test_the_spawn_server_is_wanted_for_the_allowlist_and_for_seccomp(enabled, seccomp, wanted):
    """Children use it when the layer is enabled, and always when the process itself may not execute."""
    settings = os_settings({"enabled": enabled, "seccomp": {"enabled": seccomp}})
    assert settings.wants_spawn_server is settings.needs_spawn_server is wanted


def test_everything_that_is_wrong_is_told_at_once():
    """Each invalid value is reported with its pointer, together with all others."""
    told = problems(
        {
            "enabled": "yes",
            "refresh_seconds": -1,
            "policy_file": "relative.json",
            "helper_socket": 7,
            "seccomp": {"enabled": 1},
            "landlock": {"extra_read_paths": "/opt", "extra_write_paths": ["/srv", "work"]},
        }
    )
    assert set(told) == {
        "/sandbox/os/enabled",
        "/sandbox/os/refresh_seconds",
        "/sandbox/os/policy_file",
        "/sandbox/os/helper_socket",
        "/sandbox/os/seccomp/enabled",
        "/sandbox/os/landlock/extra_read_paths",
        "/sandbox/os/landlock/extra_write_paths/1",
    }
    sentence("everything that is wrong", "\n".join(told.values()))


@rows(
    ("section", "place", "nearest"),
    [
        ({"enable": True}, "/sandbox/os/enable", "enabled"),
        ({"refresh_second": 5}, "/sandbox/os/refresh_second", "refresh_seconds"),
        ({"seccomp": {"enabeld": True}}, "/sandbox/os/seccomp/enabeld", "enabled"),
        ({"landlock": {"extra_read_path": []}}, "/sandbox/os/landlock/extra_read_path", "extra_read_paths"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_name(section, place, nearest):
    """A misspelled switch is an error, never a control that is silently off."""
    told = problems(section)
    assert set(told) == {place}
    assert nearest in told[place]


@rows("section", [[], "on", 1, True])
def test_a_section_that_is_no_object_is_refused(section):
    """``os: true`` is an error."""
    assert set(problems(section)) == {"/sandbox/os"}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )
)
def test_no_value_whatsoever_breaks_the_reading(section):
    """Every value is accepted or refused with the typed error."""
    try:
        settings = os_settings(section)
    except InvalidInputError as refused:
        assert refused.problems
    else:
        assert isinstance(settings, OsSettings)
