"""Programs are started like with subprocess: streams, environment, folder, exit status, errors."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess

import pytest

from democrai_sandbox.errors import SpawnFailed
from democrai_sandbox.kernel.spawn import SpawnOrder
from tests.kernel import forked_programs
from tests.kernel.spawn.programs import PYTHON, SHELL, order, python, run, shell
from tests.services.golden import sentence
from tests.services.rows import rows


def test_output_errors_and_exit_code_arrive(server):
    done = shell(server, "echo out; echo err >&2; exit 3")
    assert (done.returncode, done.out, done.err) == (3, "out\n", "err\n")


@rows("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV])
def test_a_signal_is_a_negative_exit_code(server, number):
    assert shell(server, f"kill -{int(number)} $$").returncode == -number


def test_input_is_read_from_the_descriptor_that_was_given(server):
    reader, writer = os.pipe()
    os.write(writer, b"fed")
    os.close(writer)
    assert shell(server, "cat", stdin=reader).out == "fed"
    os.close(reader)


def test_a_stream_that_is_not_given_is_the_null_device(server):
    child = server.spawn(order(SHELL, "-c", "test -c /dev/stdin && cat && echo lost && echo lost >&2"))
    assert child.collect() == 0


def test_the_environment_is_exactly_what_was_given(server):
    assert run(server, "/usr/bin/env", env={"ONLY": "this", "EMPTY": ""}).out == "ONLY=this\nEMPTY=\n"


def test_bytes_that_are_no_text_pass_unchanged(server):
    odd = os.fsdecode(b"\xff\xfe\xc3")
    done = run(
        server,
        PYTHON,
        "-I",
        "-S",
        "-c",
        "import os,sys; print(os.fsencode(sys.argv[1]), os.environb[b'X'])",
        odd,
        env={"X": odd},
    )
    assert done.out == "b'\\xff\\xfe\\xc3' b'\\xff\\xfe\\xc3'\n"


def test_the_program_is_executed_whatever_its_first_argument_says(server):
    reader, writer = os.pipe()
    child = server.spawn(
        SpawnOrder(SHELL, ("other", "-c", "echo $0; cat /proc/$$/cmdline"), {"PATH": "/bin"}, "/", stdout=writer)
    )
    os.close(writer)
    assert child.collect() == 0
    assert os.read(reader, 100).startswith(b"other\nother\0-c\0")
    os.close(reader)


def test_it_starts_in_the_folder_that_was_named(server, tmp_path):
    assert shell(server, "pwd -P", cwd=tmp_path).out.strip() == str(tmp_path.resolve())


_PASSING = """
import os, sys
from democrai_sandbox.kernel.spawn import SpawnServer, SpawnOrder
server = SpawnServer.start()
python = sys.argv[1]
# Numbers that the server uses for its descriptors, and numbers far beyond.
targets = (*range(5, 20), 64, 65, 300)
contents = {}
for target in targets:
    held = os.memfd_create("x")
    os.write(held, b"%d" % target)
    contents[target] = held
own = {server._link.fileno(), *(end.fileno() for pair in server._spare for end in pair)}
free = [target for target in targets if target not in own]
import fcntl
spare = {target: fcntl.fcntl(contents[target], fcntl.F_DUPFD_CLOEXEC, 400) for target in targets}
for target in free:
    os.dup2(spare[target], target)
code = "import os\\nfor t in %r: assert os.pread(t, 9, 0) == b'%%d' %% t, t" % (free,)
for turn in range(3):
    numbers = tuple(free[turn:] + free[:turn])
    child = server.spawn(SpawnOrder(python, ("python", "-I", "-S", "-c", code), {}, "/", stderr=2, pass_fds=numbers))
    assert child.collect() == 0
server.stop()
print("fine")
"""


def test_descriptors_keep_their_numbers_whatever_the_server_has_there():
    done = forked_programs.run(_PASSING, PYTHON)
    assert done.stdout == "fine\n", done.stderr


def test_no_other_descriptor_is_open_in_the_program(server):
    reader, writer = os.pipe()
    os.set_inheritable(reader, True)
    done = python(server, "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))", pass_fds=(writer,))
    os.close(reader)
    os.close(writer)
    listed = set(json.loads(done.out))
    assert {0, 1, 2, writer} <= listed
    assert len(listed) == 5  # the last one belongs to the listing


def test_it_leads_a_session_and_group_of_its_own(server):
    done = python(server, "import os; print(os.getpid() == os.getsid(0) == os.getpgid(0))")
    assert done.out == "True\n"


def test_signals_are_neither_ignored_nor_blocked(server):
    done = run(server, "/bin/grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status")
    assert [line.split()[1].strip("0") for line in done.out.splitlines()] == ["", ""]


def test_the_umask_is_the_one_that_was_ordered(server, tmp_path):
    assert shell(server, "umask", umask=0o027).out.strip() == "0027"
    now = os.umask(0)
    os.umask(now)
    assert int(shell(server, "umask").out, 8) == now


def test_an_environment_of_a_megabyte_passes(server):
    env = {f"NAME{number}": "x" * 100_000 for number in range(10)}
    done = python(
        server, "import os; print(sum(len(value) for name, value in os.environ.items() if 'NAME' in name))", env=env
    )
    assert done.out == "1000000\n"


def _as_subprocess(order_):
    with pytest.raises(OSError) as caught:
        subprocess.run(order_.argv, executable=order_.program, env=dict(order_.environment), cwd=order_.folder)
    return type(caught.value), caught.value.errno, caught.value.strerror


def test_errors_of_the_program_are_those_of_subprocess(server, tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("echo\n")
    no_format = tmp_path / "format"
    no_format.write_bytes(b"\0\1\2")
    no_format.chmod(0o755)
    cases = [
        order(str(tmp_path / "nothing")),
        order(str(plain)),
        order(str(tmp_path)),
        order(str(no_format)),
        order(SHELL, "-c", "true", cwd=tmp_path / "nowhere"),
        order(SHELL, "-c", "true", env={"A": "x" * 200_000}),
    ]
    for case in cases:
        with pytest.raises(OSError) as caught:
            server.spawn(case)
        error = caught.value
        assert (type(error), error.errno, error.strerror) == _as_subprocess(case)
        assert error.filename == (case.program if "nowhere" not in case.folder else case.folder)
    assert server.stats()["running"] == 0


def test_a_script_without_an_interpreter_line_is_refused_as_by_the_kernel(server, tmp_path):
    script = tmp_path / "script"
    script.write_text("echo hello\n")
    script.chmod(0o755)
    with pytest.raises(OSError) as caught:
        server.spawn(order(str(script)))
    assert caught.value.errno == errno.ENOEXEC


@rows(
    ("name", "changes"),
    [
        ("a name of a variable", {"env": {"A=B": "1"}}),
        ("a name of a variable", {"env": {"": "1"}}),
        ("a null byte", {"env": {"A": "x\0y"}}),
        ("many descriptors", {"pass_fds": tuple(range(3, 400))}),
        ("a large environment", {"env": {f"A{n}": "x" * 90_000 for n in range(100)}}),
    ],
)
def test_what_cannot_be_passed_on_is_refused_before_it_is_sent(server, name, changes):
    with pytest.raises(ValueError, match=r"\w") as refused:
        server.spawn(order(SHELL, "-c", "true", **changes))
    sentence(name, str(refused.value), also=[(r"\b90\d{5}\b", "9 000 000")])  # depends on the shell's path


@rows(
    ("changes", "said"),
    [
        ({"cwd": "relative"}, "folder"),
        ({"umask": 0o1000}, "umask"),
        ({"wall_seconds": -1}, "wall"),
        ({"limits": ((99, 1),)}, "limits"),
        ({"filter": b"123"}, "filter"),
    ],
)
def test_an_order_that_makes_no_sense_is_a_typed_error(server, changes, said):
    with pytest.raises(SpawnFailed, match=said):
        server.spawn(order(SHELL, "-c", "true", **changes))


def test_a_relative_program_is_refused(server):
    with pytest.raises(SpawnFailed) as refused:
        server.spawn(order("sh"))
    sentence("a relative program", str(refused.value))
