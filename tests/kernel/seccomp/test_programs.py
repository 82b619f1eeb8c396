"""Programs of all profiles, run for every number on both architectures, compared with the table and the promises."""

from __future__ import annotations

import errno
from functools import cache
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from democrai_sandbox.errors import KernelUnsupported
from democrai_sandbox.kernel.seccomp import filters, syscalls
from democrai_sandbox.kernel.seccomp.filters import (
    APPLICATION,
    NO_EXEC,
    Inet,
    Metadata,
    Profile,
    Unix,
    child_profile,
    program,
)
from democrai_sandbox.kernel.seccomp.syscalls import TABLE, Action, Architecture
from tests.kernel.seccomp.interpreter import decoded, run_steps
from tests.kernel.seccomp.test_syscalls import ATTRIBUTES, KILLED, METADATA, NOT_THERE, REFUSED, REFUSED_TO_CHILDREN
from tests.services.rows import rows

X86, ARM = Architecture.X86_64, Architecture.AARCH64
AUDIT = {X86: 0xC000003E, ARM: 0xC00000B7}
ALLOWED, KILL, SUPERVISED = 0x7FFF0000, 0x80000000, 0x7FC00000
EPERM, ENOSYS, ENOTSUP = (0x00050000 | number for number in (errno.EPERM, errno.ENOSYS, errno.ENOTSUP))
OWN_SOCKETS = child_profile(inet=Inet.NONE, unix=Unix.SUPERVISED, metadata=Metadata.SUPERVISED)
CHILDREN = [
    child_profile(inet=inet, unix=unix, fastopen=fastopen)
    for inet, unix, fastopen in product(Inet, (Unix.ALL, Unix.NONE), (True, False))
] + [OWN_SOCKETS, child_profile(multicast=True), *(child_profile(metadata=metadata) for metadata in list(Metadata)[1:])]
APPLICATIONS = [APPLICATION, Profile(fastopen=False), Profile(inet=Inet.NO_DATAGRAM), Profile(inet=Inet.NONE)]
PROFILES = [*APPLICATIONS, *CHILDREN, Profile(child=True)]


UNIX_NAMES = {Unix.ALL: "", Unix.SUPERVISED: "-own_unix", Unix.NONE: "-no_unix"}


def described(profile: Profile) -> str:
    kind = "second" if profile.only_exec else "child" if profile.child else "application"
    kind += "-exec" if profile.allow_exec else ""
    return f"{kind}-{profile.inet}{UNIX_NAMES[profile.unix]}{'' if profile.fastopen else '-no_fastopen'}" + (
        "-multicast"
        if profile.multicast
        else ""
        if profile.metadata is Metadata.ALL
        else f"-metadata_{profile.metadata}"
    )


@cache
def steps_of(profile: Profile, arch: Architecture) -> list[tuple[int, int, int, int]]:
    """Instructions of a profile's program, cached."""
    assert program(profile, arch) == program(profile, arch)
    return decoded(program(profile, arch))


def answered(profile: Profile, arch: Architecture, name: str, args: tuple[int, ...]) -> int:
    """Return the filter's result for a call."""
    return run_steps(steps_of(profile, arch), AUDIT[arch], NUMBERS[arch][name], args)[0]


BOTH = rows("arch", [X86, ARM], ids=str)
any_arch = st.sampled_from([X86, ARM])
NUMBERS = {arch: {row.name: row.number(arch) for row in TABLE} for arch in Architecture}
# Arguments that every inspected call permits, so that only the numbers decide.
HARMLESS = {
    "clone": (0x11,),
    "prlimit64": (0,),
    "setpriority": (0, 0, 5),
    "ioprio_set": (1, 0, 5),
    **dict.fromkeys(("sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr"), (0,)),
    "ioctl": (0, 0x5401),
    "fcntl": (0, 1),
    "memfd_create": (0, 8),
    "seccomp": (1, 0),
    "setsockopt": (0, 1, 2),
    "socket": (1, 1, 0),
    "socketpair": (1, 1, 0),
    "sendto": (3, 0, 0, 0),
    "sendmsg": (3, 0, 0),
    "sendmmsg": (3, 0, 0, 0),
}
LISTED = {arch: set(syscalls.allowed_numbers(arch)) for arch in Architecture}
NAMES = {arch: {number: name for name, number in NUMBERS[arch].items()} for arch in Architecture}


def promised(profile: Profile, arch: Architecture, number: int) -> int:
    """Return the result of a call by its number, with harmless arguments."""
    name = NAMES[arch].get(number)
    if arch is X86 and (512 <= number <= 547 or number >= 0x40000000):
        return EPERM
    if name in {"execve", "execveat"}:
        return ALLOWED if profile.allow_exec else KILL
    if profile.only_exec:
        return ALLOWED
    if (name == "socket" and profile.unix is Unix.NONE) or (name in REFUSED_TO_CHILDREN and profile.child):
        return EPERM
    if name == "connect" and profile.unix is Unix.SUPERVISED:
        return SUPERVISED
    if name in ATTRIBUTES and profile.child:
        return ENOTSUP
    if name in METADATA and profile.child:
        return {Metadata.ALL: ALLOWED, Metadata.REFUSED: EPERM, Metadata.SUPERVISED: SUPERVISED}[profile.metadata]
    if number > 470 or (profile.child and name is None and number not in LISTED[arch]):
        return ENOSYS
    return KILL if name in KILLED else EPERM if name in REFUSED else ENOSYS if name in NOT_THERE else ALLOWED


@BOTH
@rows("profile", [NO_EXEC, *PROFILES], ids=described)
def test_every_number_meets_what_the_table_says(arch, profile):
    steps = steps_of(profile, arch)
    beyond = [1000, 4096, 99999, 0x3FFFFFFF, 0x40000000, 0x40000208, 0x4000003B, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
    for number in [*range(601), *beyond]:
        harmless = HARMLESS.get(NAMES[arch].get(number, ""), (0,) * 6)
        answer, _ = run_steps(steps, AUDIT[arch], number, harmless)
        assert answer == promised(profile, arch, number), (number, NAMES[arch].get(number))


@BOTH
@rows("profile", [NO_EXEC, APPLICATION, CHILDREN[0]], ids=described)
def test_a_call_by_another_convention_ends_the_process(arch, profile):
    steps = steps_of(profile, arch)
    others = {0, 0x40000003, 0x40000028, 0xFFFFFFFF, *AUDIT.values()} - {AUDIT[arch]}
    for other, number in product(others, [0, 1, 59, 221, 0x40000000]):
        assert run_steps(steps, other, number)[0] == KILL


@given(arch=any_arch, args=st.tuples(*[st.integers(0, 2**64 - 1)] * 6))
def test_no_argument_opens_what_the_number_refuses(arch, args):
    steps = steps_of(APPLICATION, arch)
    for row in filters.rows(APPLICATION, arch):
        if row.action is not Action.INSPECT:
            assert run_steps(steps, AUDIT[arch], row.number(arch), args)[0] == filters.ANSWERS[row.action], row.name


def _noisy(low: st.SearchStrategy[int]) -> st.SearchStrategy[int]:
    """The kernel drops the upper half of these arguments, so an attacker may set any bits there."""
    return st.builds(lambda value, noise: value | noise << 32, low, st.integers(0, 2**32 - 1))


_word = st.integers(0, 2**32 - 1)
_families = st.one_of(st.integers(0, 50), st.sampled_from([1, 2, 10, 16, 17, 38, 40, 44]), _word)
_types = st.builds(
    lambda kind, extra: kind | extra,
    st.one_of(st.integers(0, 15), _word),
    st.sampled_from([0, 0o2000000, 0o4000, 0o2004000, 0x10, 0x80000000]),
)
_protocols = st.one_of(st.sampled_from([0, 1, 4, 6, 17, 58, 132, 136, 255, 256, 262]), _word)


def may_make(profile: Profile, family: int, kind: int, protocol: int) -> bool:
    """Second, independent implementation of the socket rules."""
    kind &= 0xF
    if family == 1:
        return profile.unix is Unix.ALL or (profile.unix is Unix.SUPERVISED and kind in {1, 5})
    if family == 16:
        return not profile.child or (protocol == 0 and profile.inet is not Inet.NONE)
    if family == 38:
        return not profile.child
    if family not in {2, 10} or profile.inet is Inet.NONE:
        return False
    if profile.inet is Inet.NO_DATAGRAM:
        return kind == 1 and protocol in {0, 6}
    if profile.child:
        return (kind, protocol) in {(1, 0), (1, 6), (2, 0), (2, 17)}
    return kind not in {3, 10} and protocol not in {256, 262}


@given(arch=any_arch, family=_noisy(_families), kind=_noisy(_types), protocol=_noisy(_protocols))
def test_sockets_are_made_as_promised(arch, family, kind, protocol):
    word = 0xFFFFFFFF
    for profile in PROFILES:
        allowed = may_make(profile, family & word, kind & word, protocol & word)
        assert answered(profile, arch, "socket", (family, kind, protocol)) == (ALLOWED if allowed else EPERM), profile


@BOTH
@rows("profile", PROFILES, ids=described)
def test_sockets_of_every_small_combination_are_made_as_promised(arch, profile):
    steps = steps_of(profile, arch)
    for family, kind, protocol in product(range(47), range(12), (0, 1, 6, 17, 132, 256, 262)):
        answer, _ = run_steps(steps, AUDIT[arch], NUMBERS[arch]["socket"], (family, kind | 0o2000000, protocol))
        assert (answer == ALLOWED) == may_make(profile, family, kind, protocol), (family, kind, protocol)


@BOTH
@rows(
    "others",
    [{"inet": Inet.ALL, "metadata": Metadata.SUPERVISED}, {"inet": Inet.NONE, "metadata": Metadata.REFUSED}],
    ids=["network", "no_supervisor"],
)
def test_without_a_supervisor_or_with_a_network_no_local_socket_is_made(arch, others):
    profile = child_profile(unix=Unix.SUPERVISED, **others)
    assert answered(profile, arch, "socket", (1, 1, 0)) == EPERM
    assert answered(profile, arch, "connect", (3, 0, 0)) == ALLOWED


@given(arch=any_arch, family=_noisy(_families), kind=_noisy(_types))
def test_pairs_of_sockets_are_local_and_without_unix_rules_stay_connected(arch, family, kind):
    local = family & 0xFFFFFFFF == 1
    for profile in PROFILES:
        answer = answered(profile, arch, "socketpair", (family, kind, 0, 0x1000))
        assert answer == (ALLOWED if local and (profile.unix is Unix.ALL or kind & 0xF in {1, 5}) else EPERM), profile


_BY_NUMBER = (
    "sched_setparam",
    "sched_setscheduler",
    "sched_setaffinity",
    "sched_setattr",
)


@given(arch=any_arch, which=_noisy(st.integers(0, 4)), who=_noisy(st.integers(0, 3) | _word))
def test_a_child_changes_nothing_about_how_others_run(arch, which, who):
    """Not even other threads of the program, which a filter cannot distinguish from those of the application."""
    itself = who & 0xFFFFFFFF == 0
    for profile in PROFILES:
        free = not profile.child
        for name in _BY_NUMBER:
            assert answered(profile, arch, name, (who,)) == (ALLOWED if free or itself else EPERM), profile
        for name, last in (("setpriority", 0), ("ioprio_set", 1)):
            alone = itself and which & 0xFFFFFFFF <= last
            assert answered(profile, arch, name, (which, who)) == (ALLOWED if free or alone else EPERM), profile


NEW_NAMESPACE = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000


def check_clone(arch, flags):
    for profile in PROFILES:
        answer = answered(profile, arch, "clone", (flags, 0x1000))
        assert answer == (EPERM if flags & NEW_NAMESPACE else ALLOWED), (profile, hex(flags))


@given(arch=any_arch, flags=_noisy(_word))
def test_no_namespace_is_made_by_clone(arch, flags):
    """Independent of other flags, and of the half that the kernel ignores."""
    check_clone(arch, flags)


@BOTH
def test_no_namespace_is_made_by_clone_with_any_single_flag(arch):
    """Each flag is known, and the flags of threads and forks are allowed."""
    for flags in (0x003D0F00, 0x11, *(1 << bit for bit in range(32))):
        check_clone(arch, flags)
        check_clone(arch, flags | 0xABCD << 32)


@given(
    arch=any_arch,
    flags=_noisy(st.one_of(_word, st.sampled_from([0, 0x4000, 0x20000000, 0x20004000]))),
    others=st.tuples(*[st.integers(0, 2**64 - 1)] * 6),
)
def test_sending_connects_only_where_it_may(arch, flags, others):
    for profile, (name, place) in product(PROFILES, [("sendto", 3), ("sendmsg", 2), ("sendmmsg", 3)]):
        answer = answered(profile, arch, name, (*others[:place], flags, *others[place + 1 :]))
        assert answer == (EPERM if flags & 0x20000000 and not profile.fastopen else ALLOWED), (profile, name)


def ioctl_promise(profile: Profile, request: int) -> int:
    """Second, independent implementation of the ioctl rules."""
    if request in {0x5412, 0x541C}:
        return EPERM
    if not profile.child or request in {0x80086601, 0x80087601, 0x801C581F, 0xC020660B}:
        return ALLOWED
    if request in {0x40049409, 0x4020940D, 0xC0189436}:
        return ALLOWED
    if profile.inet is Inet.NONE and (0x8910 <= request <= 0x89FF or 0x8B00 <= request <= 0x8BFF):
        return EPERM
    of_files = {0x66, 0x58, 0x76, 0x94, 0x72, 0xF5, 0xBC, 0xCF}
    return 0x00050000 | errno.ENOTTY if request >> 8 & 0xFF in of_files else ALLOWED


@given(arch=any_arch, request=_noisy(st.one_of(_word, st.integers(0x8900, 0x8C10), st.integers(0x5400, 0x5460))))
def test_commands_change_no_files_and_tell_nothing_about_interfaces(arch, request):
    for profile in PROFILES:
        assert answered(profile, arch, "ioctl", (3, request)) == ioctl_promise(profile, request & 0xFFFFFFFF), profile


@BOTH
def test_commands_that_are_known_meet_what_was_promised(arch):
    known = (0x40086602, 0x401C5820, 0x40087602, 0x80086601, 0x40049409, 0x5000940E, 0x8933, 0x8912, 0x541B, 0x5421)
    for profile, request in product(PROFILES, known):
        assert answered(profile, arch, "ioctl", (3, request)) == ioctl_promise(profile, request), hex(request)


@given(arch=any_arch, command=_noisy(st.one_of(st.integers(0, 50), st.integers(1020, 1060), _word)))
def test_a_child_takes_no_lease(arch, command):
    low = command & 0xFFFFFFFF
    for profile in PROFILES:
        refused = profile.child and (low in {1024, 1026} or low >= 1039)
        expected = 0x00050000 | errno.EINVAL if refused else ALLOWED
        assert answered(profile, arch, "fcntl", (3, command)) == expected, profile


@given(arch=any_arch, flags=_noisy(st.one_of(st.integers(0, 63), _word)))
def test_a_child_makes_no_memory_file_that_can_be_executed(arch, flags):
    for profile in PROFILES:
        refused = profile.child and not flags & 8
        expected = 0x00050000 | errno.EACCES if refused else ALLOWED
        assert answered(profile, arch, "memfd_create", (0x1000, flags)) == expected, profile


@given(arch=any_arch, flags=_noisy(st.one_of(st.integers(0, 63), _word)))
def test_a_child_installs_no_filter_with_a_listener(arch, flags):
    """Its answer would replace that of our filter."""
    for profile in PROFILES:
        expected = EPERM if profile.child and flags & 8 else ALLOWED
        assert answered(profile, arch, "seccomp", (1, flags, 0x1000)) == expected, profile


def joins(level: int, option: int) -> bool:
    if level == 0:
        return 35 <= option <= 48
    return level == 41 and (option in {20, 21, 27, 28} or 42 <= option <= 48)


@given(
    arch=any_arch,
    level=_noisy(st.sampled_from([0, 1, 6, 17, 41]) | _word),
    option=_noisy(st.integers(0, 80) | _word),
)
def test_a_child_joins_no_group_without_a_rule(arch, level, option):
    for profile in PROFILES:
        refused = profile.child and not profile.multicast and joins(level & 0xFFFFFFFF, option & 0xFFFFFFFF)
        assert answered(profile, arch, "setsockopt", (3, level, option)) == (EPERM if refused else ALLOWED), profile


@BOTH
@rows("profile", PROFILES, ids=described)
def test_every_option_by_which_groups_are_joined_is_known(arch, profile):
    for level, option in product((0, 1, 6, 41), range(80)):
        refused = profile.child and not profile.multicast and joins(level, option)
        assert answered(profile, arch, "setsockopt", (3, level, option)) == (EPERM if refused else ALLOWED)


@BOTH
@rows("profile", [NO_EXEC, *PROFILES], ids=described)
def test_a_number_is_found_in_few_steps(arch, profile):
    """For kernels that run the filter at every call: two for the architecture, one load, a search, one result."""
    steps = steps_of(profile, arch)
    inspected = {NUMBERS[arch][name] for name in HARMLESS}
    assert max(run_steps(steps, AUDIT[arch], n)[1] for n in range(601) if n not in inspected) <= 12
    assert len(steps) < 400


@BOTH
def test_what_is_allowed_whatever_the_arguments_reads_no_argument(arch):
    """Only for such numbers the kernel skips the filter."""
    for profile in PROFILES:
        steps = steps_of(profile, arch)
        inspected = {row.number(arch) for row in filters.rows(profile, arch) if row.action is Action.INSPECT}
        for number in set(range(601)) - inspected:
            place = 0
            accumulator = None
            while steps[place][0] != 0x06:
                code, jt, jf, k = steps[place]
                place += 1
                if code == 0x20:
                    assert k in {0, 4}, number
                    accumulator = number if k == 0 else AUDIT[arch]
                elif code == 0x05:
                    place += k
                else:
                    place += jt if (accumulator == k if code == 0x15 else accumulator >= k) else jf


def test_a_worker_may_add_the_second_filter_and_loses_nothing_but_exec():
    assert [row.name for row in filters.rows(NO_EXEC, ARM)] == ["execve", "execveat"]


def test_sends_are_not_looked_at_unless_asked_for():
    assert not {"sendto", "sendmsg", "sendmmsg"} & {row.name for row in filters.rows(APPLICATION, ARM)}


def test_without_a_table_for_the_architecture_the_error_names_the_fix(monkeypatch):
    monkeypatch.setattr(filters, "this_architecture", lambda: None)
    with pytest.raises(KernelUnsupported) as unsupported:
        program(APPLICATION)
    assert unsupported.value.code == "os_sandbox_unsupported" and "aarch64" in unsupported.value.fix
