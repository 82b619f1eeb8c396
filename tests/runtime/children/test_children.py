"""Programs that guarded code starts through the SDK: permitted programs, their environment, and their limits."""

from __future__ import annotations

import asyncio
import os
import sys
from types import SimpleNamespace

from tests.services.golden import sentence

HELPERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "helpers.py")


def helpers(world):
    """Load the helpers of the child tests."""
    return SimpleNamespace(**world.load(HELPERS))


# ---- environment -----------------------------------------------------------------------------------------------------


def environment_story(world):
    use = helpers(world)
    from democrai_sandbox.sdk import tasks

    os.environ.update(HOST_TOKEN="s3cret", LC_ALL="C.UTF-8", LD_LIBRARY_PATH="/nowhere", http_proxy="http://u:p@h")
    children = use.serve(world)
    os.environ["LATER"] = "1"

    async def body():
        os.umask(os.umask(0o027)) if False else None
        shown = await tasks.run_subprocess(["env"], env={"MINE": "ä=\n1", "PYTHONUNBUFFERED": "1"})
        place = await tasks.run_subprocess(["pwd"])
        files = await tasks.run_subprocess(["sh", "-c", "ls /proc/self/fd; umask; ps -o pgid=,sid=,pid= -p $$ || true"])
        return shown.text, place.text, files.text

    with open(world.out("open"), "w") as held:
        os.set_inheritable(held.fileno(), True)
        before = os.umask(0o037)
        shown, place, files = use.guarded(world, children, body)
        os.umask(before)
        number = held.fileno()
    pairs = dict(line.split("=", 1) for line in shown.replace("\n1\n", "\\n1\n").splitlines() if "=" in line)
    return {"env": pairs, "place": place.strip(), "files": files.split(), "held": number}


def test_a_child_gets_a_little_of_the_hosts_environment_and_what_the_guard_says(case):
    """No secrets, and no variables that redirect programs; HOME is the subject's folder; descriptors are closed."""
    told = case.run(environment_story)
    env = told["env"]
    for name in ("HOST_TOKEN", "LD_LIBRARY_PATH", "http_proxy", "LATER", "PYTHONPATH"):
        assert name not in env
    assert env["LC_ALL"] == "C.UTF-8"
    assert env["MINE"] == "ä=\\n1"
    assert env["PYTHONUNBUFFERED"] == "1"
    assert env["HOME"] == told["place"] == str(case.root)
    assert env["DEMOCRAI_NETWORK_SUBJECT"] == "demo"
    assert env["DEMOCRAI_NETWORK_SUBJECT_KIND"] == "module"
    assert (env["DEMOCRAI_USER_ID"], env["DEMOCRAI_SESSION_KEY"]) == ("uma", "s1")
    assert '"target":"' + str(case.root) in env["DEMOCRAI_ACCESS"]
    assert "0037" in told["files"]
    assert set(told["files"][: told["files"].index("0037")]) <= {"0", "1", "2", "3"}


REFUSED = {
    "DEMOCRAI_ACCESS": "[]",
    "DEMOCRAI_NEW": "1",
    "democrai_access": "[]",
    "LD_PRELOAD": "x.so",
    "LD_LIBRARY_PATH": "/tmp",
    "LD_AUDIT": "x",
    "PYTHONPATH": "/tmp",
    "PYTHONHOME": "/tmp",
    "PYTHONSTARTUP": "x",
    "PYTHONUSERBASE": "/tmp",
    "PYTHONWARNINGS": "x",
    "PYTHONINSPECT": "1",
    "GCONV_PATH": "/tmp",
    "BASH_ENV": "x",
    "BASH_FUNC_ls%%": "() { :; }",
    "ENV": "x",
    "GIT_SSH_COMMAND": "x",
    "GIT_EXTERNAL_DIFF": "x",
    "NODE_OPTIONS": "x",
    "PERL5OPT": "x",
    "RUBYOPT": "x",
    "HOSTALIASES": "x",
    "OPENSSL_CONF": "x",
    "TMPDIR": "/etc",
    "TMP": "/srv",
}


def refusals_story(world):
    use = helpers(world)
    from democrai_sandbox.sdk import tasks

    children = use.serve(world)
    names = world.args[0]

    async def body():
        answers = {
            name: await use.told(tasks.run_subprocess(["true"], env={name: value})) for name, value in names.items()
        }
        fine = {"TMPDIR": world.inside("t"), "MY": "1", "PYTHONUTF8": "1"}
        answers["fine"] = (await tasks.run_subprocess(["true"], env=fine)).returncode
        for key, env in {
            "type": {"A": 1},
            "nul": {"A": "\0"},
            "name": {"A=B": "1"},
            "empty": {"": "1"},
            "many": {str(number): "" for number in range(300)},
            "long": {"A": "x" * 200_000},
        }.items():
            answers[key] = (await use.told(tasks.run_subprocess(["true"], env=env))).partition(":")[0]
        return answers

    return use.guarded(world, children, body)


def test_names_that_are_not_the_callers_to_give_are_refused(case):
    """Variables of the runtime, and variables that make programs run other code; the others are validated."""
    told = case.run(refusals_story, REFUSED)
    for name in REFUSED:
        assert told[name] == f"EnvironmentDenied: sandbox_env_denied:{name}", name
    assert told["fine"] == 0
    assert {told[name] for name in ("type", "nul", "name", "empty", "many", "long")} == {"InvalidInputError"}


# ---- programs --------------------------------------------------------------------------------------------------------


class Office:
    """A decider that records its questions, and allows the accesses on its list."""

    def __init__(self, *approved):
        self.approved, self.asked = approved, []

    def decide(self, question):
        self.asked.append([question.subject, question.operation, question.target, question.register_request])
        return question.target in self.approved


def programs_story(world):
    use = helpers(world)
    from democrai_sandbox.sdk import tasks

    outside, hidden = world.out("tool"), world.out("hidden")
    for path in (outside, hidden):
        with open(path, "w") as file:
            file.write("#!/bin/sh\necho ran $0\n")
        os.chmod(path, 0o755)
    own = use.script(world, "own", "#!/bin/sh\necho own\n")
    declared = use.script(world, "declared", "#!/bin/sh\necho declared\n")
    plain = use.script(world, "plain", "#!/bin/sh\necho plain\n", 0o644)
    os.symlink(outside, world.inside("link"))
    os.symlink("/bin/echo", world.inside("to-echo"))
    office = Office(outside)
    children = use.serve(world, decider=office)
    rules = [
        {"resource_type": "filesystem", "operation": "execute", "target": path}
        for path in (declared, plain, world.inside("nothing"), world.inside("folder"))
    ]
    os.mkdir(world.inside("folder"))

    async def body():
        run = lambda *argv, **more: use.told(tasks.run_subprocess(list(argv), **more))
        answers = {
            "name": await run("echo", "hi"),
            "path": await run("/bin/echo", "hi"),
            "interpreter": await run(sys.executable, "-c", "print('py')"),
            "own": await run(own),
            "relative": await run("./own"),
            "declared": await run(declared),
            "declared relative": await run("./declared"),
            "approved": await run(outside),
            "link": await run("./link"),
            "link to system": await run("./to-echo", "through"),
            "hidden": await run(hidden),
            "missing outside": await run(world.out("missing")),
            "missing": await run("no-such-program"),
            "by a path of its own": await run("hidden", env={"PATH": world.outside}),
            "approved by name": await run("tool", env={"PATH": world.outside}),
            "relative path of its own": await run("own", env={"PATH": "."}, cwd=world.root),
            "not executable": await run(plain),
            "declared but missing": await run(world.inside("nothing")),
            "a folder": await run(world.inside("folder")),
            "setuid": await run("/usr/bin/su") if os.path.exists("/usr/bin/su") else "FilesystemDenied",
            "text": await run("", "x"),
        }
        return {
            key: value if isinstance(value, str) else [value.returncode, value.text, value.stderr.decode()]
            for key, value in answers.items()
        }

    async def writer():
        return [await use.told(tasks.run_subprocess([name])) for name in ("/usr/bin/env", "env")]

    answers = use.guarded(world, children, body, access=rules)
    may_write = {"resource_type": "filesystem", "operation": "modify", "target": "/usr/bin/env"}
    answers["writable"], answers["writable by name"] = use.guarded(world, children, writer, access=[may_write])
    may_run = {**may_write, "operation": "execute"}
    ran = use.guarded(world, children, writer, access=[may_write, may_run])
    answers["writable and declared"] = [done.returncode for done in ran]
    return answers, office.asked


def test_programs_of_the_system_run_and_others_need_a_rule_or_an_approval(case):
    """By the resolved file; a script by its own path; the existence of files without rights is not revealed."""
    told, asked = case.run(programs_story)
    assert told["name"] == told["path"] == [0, "hi\n", ""]
    assert told["interpreter"] == [0, "py\n", ""]
    denied = "FilesystemDenied: sandbox_filesystem_denied:demo:"
    assert told["own"] == told["relative"] == f"{denied}{case.root}/own"
    assert told["declared"] == told["declared relative"] == [0, "declared\n", ""]
    assert told["approved"] == told["link"] == [0, f"ran {case.outside}/tool\n", ""]
    assert told["link to system"] == [0, "through\n", ""]
    assert told["hidden"] == f"{denied}{case.outside}/hidden"
    assert told["missing outside"] == f"{denied}{case.outside}/missing"
    assert told["missing"].startswith("InvalidInputError: /argv/0: ")
    sentence("no program of a name", told["missing"])
    for key, name in (("by a path of its own", "hidden"), ("relative path of its own", "own")):
        assert told[key] == told["missing"].replace("no-such-program", name), key
    assert told["approved by name"] == [0, f"ran {case.outside}/tool\n", ""]
    for key in ("not executable", "declared but missing", "a folder"):
        assert told[key].startswith("InvalidInputError: /argv/0: "), key
        sentence(key, told[key], case.root)
    assert told["setuid"].startswith("FilesystemDenied")
    assert told["text"].startswith("InvalidInputError")
    assert ["demo", "execute", f"{case.outside}/hidden", True] in asked
    assert told["writable"].startswith("FilesystemDenied")
    assert told["writable by name"] == told["writable"]
    assert told["writable and declared"] == [0, 0]


def named_programs_story(world):
    use = helpers(world)
    from democrai_sandbox.sdk import tasks

    office = Office("seq")
    children = use.serve(world, decider=office)
    os.symlink("/bin/sh", world.inside("echo"))
    own = use.script(world, "own", "#!/bin/sh\necho own\n")
    rules = [
        {"resource_type": "system_dependency", "operation": "execute", "target": "echo"},
        {"resource_type": "system_dependency", "operation": "execute", "target": "/usr/bin/env"},
        {"resource_type": "filesystem", "operation": "execute", "target": own},
    ]

    async def body():
        run = lambda *argv, **more: use.told(tasks.run_subprocess(list(argv), **more))
        answers = {
            "name": await run("echo", "hi"),
            "path": await run("/usr/bin/echo", "hi"),
            "named by its path": await run("env", "--version"),
            "execute rule": await run(own),
            "approved": await run("seq", "1"),
            "other": await run("true"),
            "other path": await run("/usr/bin/true"),
            "link of that name": await run("./echo", "-c", "echo no"),
            "path of its own": await run("echo", "-c", "echo no", env={"PATH": world.root}),
            "interpreter": await run(sys.executable, "-c", "print('no')"),
        }
        return {key: value if isinstance(value, str) else value.returncode for key, value in answers.items()}

    return use.guarded(world, children, body, access=rules), office.asked


def test_a_subject_with_named_programs_starts_no_others(case):
    """System dependencies name programs by name or path; a link with that name to another program does not count."""
    told, asked = case.run(named_programs_story)
    allowed = {"name", "path", "named by its path", "execute rule", "approved"}
    assert {key for key, answer in told.items() if answer == 0} == allowed
    denied = "FilesystemDenied: sandbox_filesystem_denied:demo:"
    assert all(told[key].startswith(denied) for key in told.keys() - allowed), told
    assert told["other"].removeprefix(denied) in ("/usr/bin/true", "/bin/true")
    assert ["demo", "execute", told["other"].removeprefix(denied), True] in asked


def places_story(world):
    use = helpers(world)
    from democrai_sandbox.sdk import tasks

    mine, other = world.out("modules", "demo"), world.out("modules", "other")
    for folder in (mine, other):
        os.makedirs(folder)
        for name in ("tool",):
            with open(os.path.join(folder, name), "w") as file:
                file.write("#!/bin/sh\necho ran\n")
            os.chmod(os.path.join(folder, name), 0o755)
    office = Office(os.path.join(other, "tool"))
    owned = lambda subject: (mine,) if subject.name == "demo" else (other,)
    children = use.serve(world, decider=office, owned=owned, protected=[world.out("modules")])
    rule = {"resource_type": "filesystem", "operation": ["execute", "read"], "target": world.out("modules")}

    async def body():
        run = lambda *argv, **more: use.told(tasks.run_subprocess(list(argv), **more))
        answers = {
            "mine": await run(os.path.join(mine, "tool")),
            "other": await run(os.path.join(other, "tool")),
            "mine as folder": await run("pwd", cwd=mine),
            "other as folder": await run("pwd", cwd=other),
            "outside": await run("pwd", cwd=world.outside),
            "missing outside": await run("pwd", cwd=world.out("missing")),
            "below": await run("pwd", cwd="sub"),
            "no folder": await run("pwd", cwd="nothing"),
            "system": await run("pwd", cwd="/usr"),
            "type": await run("pwd", cwd=7),
        }
        return {key: value if isinstance(value, str) else value.text.strip() for key, value in answers.items()}

    os.mkdir(world.inside("sub"))
    return use.guarded(world, children, body, access=[rule]), office.asked


def test_what_the_host_protects_is_only_for_its_owner(case):
    """Independent of rules and approvals; a working directory has to be readable for the subject."""
    told, asked = case.run(places_story)
    assert told["mine"] == "ran"
    assert told["other"].startswith("FilesystemDenied")
    assert told["mine as folder"] == f"{case.outside}/modules/demo"
    for key in ("other as folder", "outside", "missing outside"):
        assert told[key].startswith("FilesystemDenied"), key
    assert told["below"] == f"{case.root}/sub"
    assert told["no folder"].startswith("InvalidInputError: /cwd: ")
    assert f"{case.root}/nothing" in told["no folder"]
    assert told["system"] == "/usr"
    assert told["type"].startswith("InvalidInputError")
    assert not any("/modules/" in target for _, _, target, _ in asked)


def callers_story(world):
    use = helpers(world)
    from democrai_sandbox.runtime.sdk_services import call
    from democrai_sandbox.sdk import tasks

    children = use.serve(world)
    answers = {}

    async def run():
        return await use.told(tasks.run_subprocess(["true"]))

    for kind in ("module", "tool", "engine", "extractor", "mcp"):
        answer = use.guarded(world, children, run, subject_kind=kind)
        answers[kind] = answer if isinstance(answer, str) else answer.returncode

    async def host():
        from democrai_sandbox import process_guard_context

        children.open()
        mine = process_guard_context(subject="demo", allowed_paths=[world.root])
        theirs = process_guard_context(subject="other", allowed_paths=[world.root])
        handle = mine.run(call, "children.start", ["sleep", "30"], {})
        for name in ("wait", "read", "stop"):
            answers[name] = await use.told(asyncio.to_thread(theirs.run, call, f"children.{name}", handle))
        answers["wrong"] = await use.told(asyncio.to_thread(mine.run, call, "children.wait", "0" * 32))
        answers["option"] = await use.told(
            asyncio.to_thread(mine.run, call, "children.start", ["true"], {"shell": True})
        )
        mine.run(call, "children.stop", handle)

    asyncio.run(host())
    answers["word"] = use.guarded(world, children, lambda: use.told(tasks.run_subprocess("ls -l")))
    children.close()
    answers["closed"] = use.guarded(world, children, run)
    return answers


def test_engines_extractors_and_mcp_servers_start_nothing_and_handles_are_their_owners(case):
    """A handle is useless to another subject that guessed it."""
    told = case.run(callers_story)
    assert told["module"] == told["tool"] == 0
    for kind in ("engine", "extractor", "mcp"):
        assert told[kind] == "SubprocessDenied: sandbox_subprocess_denied:sdk.tasks.run_subprocess"
    assert {told[name] for name in ("wait", "read", "stop")} == {told["wrong"]}
    assert told["wrong"].startswith("InvalidInputError: /handle: ")
    assert told["option"].startswith("InvalidInputError: /: ")
    assert "'shell'" in told["option"]
    assert told["word"].startswith("InvalidInputError: /argv: ")
    assert told["closed"].startswith("RuntimeServiceFailed")
