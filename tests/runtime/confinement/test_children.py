"""The kernel confines programs that extensions start to their rules: a shell does not run the Python guard."""

from __future__ import annotations

import os
import sys

import pytest

from democrai_sandbox.runtime.children.service import UNCONFINED

LAB = os.path.join(os.path.dirname(__file__), "confined_host.py")

MODULE = """
from democrai_sandbox import sdk

@sdk.action("sh")
async def sh(script, **options):
    done = await sdk.tasks.run_subprocess(["sh", "-c", script], **options)
    return [done.returncode, done.text, done.stderr.decode(), list(done.unenforced), done.timed_out]

@sdk.action("run")
async def run(argv, **options):
    done = await sdk.tasks.run_subprocess(argv, **options)
    return [done.returncode, done.text, done.stderr.decode()]
"""


PYTHON_CHILD = """
import sys
from democrai_sandbox import process_guard_context_from_env
print(end=process_guard_context_from_env().run(lambda: open(sys.argv[1]).read()))
"""


def all_parts(world):
    """Run all parts below in one host, each with separate modules; the last one stops the spawn server."""
    lab = (parts := world.load(LAB))["Lab"](world)
    stories = {
        part.__name__: part(lab, parts["entry"])
        for part in (
            *(reads_and_writes, programs, ordinary, named, escapes, named_by_scripts, approved_by_name),
            *(connections, approved, revoked, links, limited, gone),
        )
    }

    async def story():
        return {name: await each() for name, each in stories.items()}

    return lab.serve(story, limits={"open_files": 60, "cpu_seconds": 9})


@pytest.fixture(scope="module")
def confined(shared_case):
    """Return the outcomes of modules of one host, by part."""
    return shared_case.run(all_parts)


def reads_and_writes(lab, entry):
    house = lab.house
    readable, other = house.file("readable/file", "open"), house.file("other/file", "shut")
    writable = os.path.dirname(house.file("writable/file", "old"))
    rules = [
        entry("read", os.path.dirname(readable)),
        *(entry(act, writable) for act in ("read", "create", "modify", "delete")),
    ]
    house.extension("files", MODULE, access=rules)
    script = f"""
        cat {readable} && echo
        cat {other} 2>/dev/null || echo "not read"
        echo new > {writable}/made && cat {writable}/made
        rm {writable}/file && echo removed
        echo x 2>/dev/null > {os.path.dirname(readable)}/made || echo "not made"
        echo x 2>/dev/null >> {readable} || echo "not changed"
        echo x > "$HOME/own" && cat "$HOME/own"
        echo x > "$TMPDIR/scratch" && echo scratch
        cat {house.state}/keys 2>/dev/null >/dev/null || echo "keys shut"
        ls {house.base}/data >/dev/null 2>&1 || echo "other data shut"
        read line < /proc/$$/status && echo "own process"
        cat /proc/$PPID/environ 2>/dev/null >/dev/null || echo "other process shut"
        echo x >/dev/null && echo "end"
    """

    async def story():
        return await lab.action("files", "sh", script=script)

    return story


def test_a_shell_reads_and_writes_what_the_rules_of_its_module_say_and_nothing_else(confined):
    """That process runs no Python: the kernel stops it."""
    code, output, complaints, unenforced, _ = confined["reads_and_writes"]
    assert output.splitlines() == [
        "open",
        "not read",
        "new",
        "removed",
        "not made",
        "not changed",
        "x",
        "scratch",
        "keys shut",
        "other data shut",
        "own process",
        "other process shut",
        "end",
    ], complaints
    assert code == 0
    assert unenforced == []


def programs(lab, entry):
    house = lab.house
    tool, other = (
        house.file("tools/tool", "#!/bin/sh\necho ran $1\n"),
        house.file("other/tool", "#!/bin/sh\necho ran\n"),
    )
    os.chmod(tool, 0o755)
    os.chmod(other, 0o755)
    house.extension("programs", MODULE, access=[entry("execute", tool), entry("read", os.path.dirname(other))])
    python = "import ctypes, os; print(os.getpid() > 0, open('/etc/hostname').read() != '')"

    async def story():
        return [
            await lab.action("programs", "run", argv=[tool, "it"]),
            await lab.action("programs", "sh", script=f"{tool} again; {other} || echo not run"),
            await lab.action("programs", "run", argv=["python3", "-c", python]),
            await lab.action("programs", "run", argv=["cat"], input="given"),
            await lab.action("programs", "sh", script="exit 7"),
            await lab.action("programs", "sh", script="kill -TERM $$"),
            (await lab.action("programs", "sh", script="sleep 30", timeout=0.5))[4],
        ]

    return story


def test_programs_run_as_without_the_kernel_layer_if_they_may_be_executed(confined):
    """Its own program by a rule, those of the system as usual; one that may only be read is not executed."""
    tool, again, python, cat, code, signal, timed_out = confined["programs"]
    assert tool == [0, "ran it\n", ""]
    assert again[1] == "ran again\nnot run\n"
    assert "ermission denied" in again[2]
    assert python == [0, "True True\n", ""]
    assert cat == [0, "given", ""]
    assert code[0] == 7
    assert signal[0] == -15
    assert timed_out is True


ORDINARY = {
    "pipes and temporary files": "seq 9 | sort -r | head -1 > $(mktemp) && test -w /dev/null && echo > /dev/null",
    "descriptors": "cat /dev/stdin </dev/null && echo x > /dev/stdout && exec ls /proc/self/fd >/dev/null",
    "own process": "exec cat /proc/self/status /proc/self/stat /proc/meminfo /proc/cpuinfo >/dev/null",
    "tools": "echo a > f && sed -i s/a/b/ f && grep -q b f && tar cf t.tar f && tar tf t.tar && rm f t.tar",
    "search": "touch here && find . -name here | xargs ls -l && awk 'BEGIN {exit 0}'",
    "locale and time": "locale -a >/dev/null && date && ls /usr/share/zoneinfo >/dev/null",
    "terminals": 'test -z "$(ls -d /lib/terminfo 2>/dev/null)" || TERM=xterm tput bold >/dev/null',
    "git": "git init -q g && cd g && git config user.name n && git config user.email n@n && echo x > f"
    " && git add f && git commit -qm x && git status --short && git log --oneline && git clone -q . ../h",
    "python": "python3 -c 'import ssl, sqlite3, tempfile, subprocess, threading, asyncio; ssl.create_default_context();"
    ' asyncio.run(asyncio.sleep(0)); tempfile.TemporaryFile(); subprocess.run(["true"], check=True)\'',
}


def ordinary(lab, entry):
    lab.house.extension("ordinary", MODULE)

    async def story():
        return {name: await lab.action("ordinary", "sh", script=f"set -e; {each}") for name, each in ORDINARY.items()}

    return story


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_programs_work_in_the_folder_of_their_module(confined, name):
    """Without a single rule: system programs, libraries, the process's own entries in /proc, and its data folder."""
    code, _, complaints, unenforced, _ = confined["ordinary"][name]
    assert (code, complaints, unenforced) == (0, "", [])


def depends(*programs):
    return [{"resource_type": "system_dependency", "operation": "execute", "target": name} for name in programs]


def named(lab, entry):
    lab.house.extension("named", MODULE, access=depends("sh", "git", "no-such-library"))
    loose = "git init -q g && cd g && git config alias.one '!cat /etc/hostname' && git status --short"

    async def story():
        return [
            await lab.action("named", "sh", script="echo ran; cat /etc/hostname"),
            await lab.action("named", "run", argv=["cat", "/etc/hostname"]),
            await lab.action("named", "sh", script=loose),
            await lab.action("named", "sh", script="cd g && git one"),
            await lab.action("named", "sh", script="cp /bin/cat mine 2>/dev/null; cd g; git --exec-path"),
            await lab.action("named", "sh", script="python3 -c 1 || /usr/bin/env true || perl -e 1 || echo none"),
        ]

    return story


def test_a_subject_with_named_programs_starts_no_other_one(confined):
    """Neither does a program that it may start: the kernel refuses to execute the others."""
    shell, cat, loose, alias, parts, none = confined["named"]
    assert (shell[1], shell[0]) == ("ran\n", 126) and "ermission denied" in shell[2]
    assert cat[0] == "FilesystemDenied"
    assert loose[0] == 0, loose
    assert alias[0] != 0
    assert parts[0] == 0 and parts[1]
    assert none[1] == "none\n"


ESCAPES = """
import errno, os, shutil, subprocess

def copied(path):
    shutil.copy("/bin/true", path)
    os.chmod(path, 0o755)
    return path

def written(path):
    with open(path, "w") as script:
        script.write("#!/bin/true\\n")
    os.chmod(path, 0o755)
    return path

def in_memory():
    handle = os.memfd_create("x", 0)
    os.write(handle, open("/bin/true", "rb").read())
    return f"/proc/self/fd/{handle}"

def attempt(place, *arguments):
    try:
        subprocess.run([place(), *arguments], check=True)
        return "ran"
    except OSError as error:
        return errno.errorcode[error.errno]

link = lambda: os.symlink("/bin/true", "link") or "./link"
temp = os.environ.get("TMPDIR", "/tmp")
places = (lambda: "/bin/true", lambda: copied("./copy"), lambda: copied(f"{temp}/copy-{os.getpid()}"),
          lambda: written("./script"), link, in_memory, lambda: "/usr/bin/env")
print(*(attempt(place) for place in places), attempt(lambda: os.readlink("/proc/self/exe"), "-c", "0"))
os.unlink(f"{temp}/copy-{os.getpid()}")
"""


def escapes(lab, entry):
    lab.house.extension("escapes", MODULE, access=depends("python3"))

    async def story():
        return await lab.action("escapes", "run", argv=["python3", "-I", "-S", "-c", ESCAPES])

    return story


def test_a_named_interpreter_executes_no_other_file(confined):
    """No copy, script, link or file in memory; it may execute itself."""
    code, output, complaints = confined["escapes"]
    assert (code, complaints) == (0, "")
    assert output.split() == [*["EACCES"] * 7, "ran"]


def named_by_scripts(lab, entry):
    house = lab.house
    direct = house.file("scripts/direct", "#!/bin/sh\necho direct\n")
    by_env = house.file("scripts/by_env", "#!/usr/bin/env python3\nprint('by env')\n")
    secret = house.file("secrets/key", "SECRET")
    data = f"{house.base}/data/modules/scripts"
    for path in (direct, by_env):
        os.chmod(path, 0o755)
    rules = [entry("execute", f"{data}/made"), *depends(direct, by_env)]
    house.extension("scripts", MODULE, access=rules)

    async def story():
        os.makedirs(data, exist_ok=True)
        with open(f"{data}/made", "w") as made:
            made.write(f"#!{secret}\n")
        os.chmod(f"{data}/made", 0o755)
        read = f"print(open({secret!r}).read())"
        return [
            await lab.action("scripts", "run", argv=[direct]),
            await lab.action("scripts", "run", argv=[by_env]),
            await lab.action("scripts", "run", argv=[f"{data}/made"]),
            await lab.action("scripts", "run", argv=["python3", "-c", read]),
        ]

    return story


def test_a_named_script_runs_with_its_interpreter(confined):
    """Also through env; a script of the subject that names another file gets no right to read it."""
    direct, by_env, made, python = confined["named_by_scripts"]
    assert direct == [0, "direct\n", ""]
    assert by_env == [0, "by env\n", ""]
    assert "SECRET" not in str(made)
    assert python[0] == "FilesystemDenied"


def approved_by_name(lab, entry):
    house = lab.house
    house.extension("asked", MODULE, access=depends("sh"))
    script = "seq 1; head -c 0 /dev/null || echo no head"

    async def story():
        before = await lab.action("asked", "sh", script=script)
        house.decide("approval", "module:asked", "system_dependency", "execute", "seq")
        return [before, await lab.action("asked", "sh", script=script)]

    return story


def test_a_program_that_was_approved_by_name_may_be_executed_by_new_children(confined):
    """It is added to those that the manifest names; the others stay refused."""
    before, after = confined["approved_by_name"]
    assert before[1] == "no head\n"
    assert after[1] == "1\nno head\n"


CONNECT = """
import socket, sys
def attempt(family, kind, address):
    try:
        with socket.socket(family, kind) as one:
            one.settimeout(5)
            one.connect(address)
            if kind == socket.SOCK_DGRAM: one.send(b"x")
        return "ok"
    except OSError as error:
        return type(error).__name__
open_port, shut_port, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
print(attempt(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", open_port)),
      attempt(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", shut_port)),
      attempt(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", shut_port)),
      attempt(socket.AF_UNIX, socket.SOCK_STREAM, path))
"""


def connections(lab, entry):
    import socket

    house = lab.house
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    open_port, shut_port = (str(listener.getsockname()[1]) for listener in listeners)
    path = f"{house.base}/socket"
    local = socket.socket(socket.AF_UNIX)
    local.bind(path)
    local.listen()
    house.extension("connects", MODULE, access=[entry("connect", f"127.0.0.1:{open_port}")])
    house.extension("alone", MODULE)
    argv = ["python3", "-I", "-S", "-c", CONNECT, open_port, shut_port, path]

    async def story():
        try:
            return [await lab.action(name, "run", argv=argv) for name in ("connects", "alone")]
        finally:
            for one in (*listeners, local):
                one.close()

    return story


def test_a_child_connects_to_the_ports_of_its_rules_and_without_rules_nowhere(confined):
    """Unix sockets and datagrams count too, if no rule covers them."""
    demo, alone = confined["connections"]
    assert demo[1].split() == ["ok", "PermissionError", "ok", "PermissionError"], demo
    assert alone[1].split() == ["PermissionError"] * 4, alone


def approved(lab, entry):
    house = lab.house
    tool = house.file("approved/tool", "#!/bin/sh\ncat here\n")
    os.chmod(tool, 0o755)
    folder = os.path.dirname(house.file("work/here", "in place"))
    beside = house.file("beside/file", "beside")
    house.extension("asks", MODULE)

    async def story():
        before = await lab.action("asks", "run", argv=[tool], cwd=folder)
        house.decide("approval", "module:asks", "filesystem", "execute", tool)
        house.decide("approval", "module:asks", "filesystem", "read", folder)
        shut = await lab.action("asks", "sh", script=f"cat {beside}")
        house.decide("approval", "module:asks", "filesystem", "read", os.path.dirname(beside))
        after = await lab.action("asks", "run", argv=[tool], cwd=folder)
        other = await lab.action("asks", "sh", script=f"cat {beside}; echo x 2>/dev/null >> {beside} || echo ' kept'")
        python = await lab.action("asks", "run", argv=[sys.executable, "-c", PYTHON_CHILD, beside])
        house.decide("denial", "module:asks", "filesystem", "read", os.path.dirname(beside))
        denied = await lab.action("asks", "sh", script=f"cat {beside}")
        return [before, after, shut[0], other[1], python[1:], denied[0]]

    return story


def test_a_program_and_a_folder_that_were_approved_are_open_to_the_child(confined):
    """For the kernel and for a Python child that reads its guard from the environment; a denial closes it again."""
    before, after, shut, other, python, denied = confined["approved"]
    assert before[0] == "FilesystemDenied"
    assert after == [0, "in place", ""]
    assert (shut, denied) == (1, 1)
    assert other == "beside kept\n"
    assert python == ["beside", ""]


def revoked(lab, entry):
    house = lab.house
    wanted, other = (os.path.dirname(house.file(f"{name}/file", name)) for name in ("revoked", "kept"))
    house.extension("loses", MODULE)

    async def story():
        import asyncio
        from time import monotonic

        for folder in (wanted, other):
            house.decide("approval", "module:loses", "filesystem", "read", folder)
        work = asyncio.ensure_future(lab.action("loses", "sh", script=f"echo > begun; sleep 50; cat {wanted}/file"))
        while not os.path.exists(f"{house.base}/data/modules/loses/begun"):
            await asyncio.sleep(0.01)
        begin = monotonic()
        [decision] = [one for one in house.admin("approvals").items if one.access.target == wanted]
        house.admin("revoke", decision.id)
        ended = await work
        after = await lab.action("loses", "sh", script=f"cat {other}/file")
        return [ended, monotonic() - begin, after[:2]]

    return story


def test_a_running_child_ends_when_an_approval_that_it_had_is_revoked(confined):
    ended, seconds, after = confined["revoked"]
    assert ended[0] == "RuntimeServiceFailed"
    assert seconds < 10
    assert after == [0, "kept"]


def links(lab, entry):
    house = lab.house
    secret = house.file("linked/file", "SECRET")
    data = f"{house.base}/data/modules/links"
    rules = [entry("read", f"{data}/later"), entry("execute", f"{data}/programs")]
    house.extension("links", MODULE, access=rules)
    folder = os.path.dirname(secret)
    plant = f"ln -s {folder} {data}/later; ln -s {folder} {data}/programs; ls {data}"

    async def story():
        os.makedirs(data, exist_ok=True)
        planted = await lab.action("links", "sh", script=plant)
        read = await lab.action("links", "sh", script=f"cat {data}/later/file; cat {data}/programs/file; cat {secret}")
        return [planted[1].split(), read[1]]

    return story


def test_a_link_that_a_subject_puts_in_its_own_folder_opens_nothing(confined):
    """After the link is created, a rule for a path below it would apply to the link's target."""
    planted, read = confined["links"]
    assert {"later", "programs"} <= set(planted)
    assert read == ""


def old_kernels(world):
    lab = world.load(LAB)["Lab"](world, abi=0)
    house = lab.house
    secret = house.file("secret/file", "SECRET")
    house.extension("demo", MODULE)

    async def story():
        done = await lab.action("demo", "sh", script=f"cat {secret}")
        return [done, house.runtime.confinement.unenforced]

    return lab.serve(story)


def test_where_there_is_no_landlock_the_result_and_the_status_say_so(case):
    """The program runs, but the kernel cannot enforce the rules."""
    done, noted = case.run(old_kernels)
    assert done[:2] == [0, "SECRET"]
    assert any("Landlock" in text for text in done[3])
    assert noted == {"module:demo": done[3]}


def gone(lab, entry):
    lab.house.extension("last", MODULE)

    async def story():
        before = await lab.action("last", "sh", script="echo hi")
        lab.kernel.spawn.stop()
        return [before[1], await lab.action("last", "sh", script="echo hi")]

    return story


def test_a_spawn_server_that_is_gone_is_a_failure_and_no_denial(confined):
    """Nothing was decided, and nothing is started in another way."""
    before, after = confined["gone"]
    assert before == "hi\n"
    assert after[0] == "RuntimeServiceFailed"
    assert "os_sandbox_spawn_failed" in after[1]


LIMITS = """
from democrai_sandbox import sdk
import sys

@sdk.action("python")
async def python(code, **options):
    done = await sdk.tasks.run_subprocess(["python3", "-I", "-S", "-c", code], **options)
    return [done.returncode, done.text, done.timed_out]
"""


def limited(lab, entry):
    house = lab.house
    house.extension("limited", LIMITS, limits={"open_files": 50, "address_space_mb": 300})
    house.extension("hurried", LIMITS, limits={"wall_seconds": 2})
    house.extension("busy", LIMITS, limits={"cpu_seconds": 1})
    shown = "import resource as r; print(*(r.getrlimit(n)[1] for n in (r.RLIMIT_NOFILE, r.RLIMIT_AS, r.RLIMIT_CPU)))"

    async def story():
        return [
            await lab.action("limited", "python", code=shown),
            await lab.action("limited", "python", code="x = bytearray(400 << 20)"),
            await lab.action("hurried", "python", code="import time; time.sleep(30)"),
            await lab.action("busy", "python", code="while True: pass"),
            await lab.action("busy", "python", code=shown),
        ]

    return story


def test_the_stricter_limits_of_manifest_and_host_are_kept(confined):
    """Open files, memory, processor time and wall-clock time."""
    shown, memory, slow, busy, other = confined["limited"]
    assert shown == [0, f"50 {300 << 20} 9\n", False]
    assert memory[0] == 1
    assert slow[2] is True
    assert busy[0] in (-24, -9)
    assert other[1].split()[::2] == ["60", "1"]


def unconfined(world):
    lab = world.load(LAB)["Lab"](world, on=False)
    house = lab.house
    secret = house.file("secret/file", "SECRET")
    house.extension("demo", MODULE)
    house.extension("brief", LIMITS, limits={"wall_seconds": 1})

    async def story():
        read = await lab.action("demo", "sh", script=f"cat {secret}")
        late = await lab.action("brief", "python", code="import time; time.sleep(30)", timeout=20)
        return [read[:4], late[0] < 0, late[2]]

    return lab.serve(story)


def test_without_a_kernel_layer_nothing_is_confined_but_the_time(case):
    """The result reports that the kernel enforces nothing; the time limit needs no kernel."""
    assert case.run(unconfined) == [[0, "SECRET", "", list(UNCONFINED)], True, True]
