"""End of children: in time, with everything they started, and with limited output."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from types import SimpleNamespace

from tests.services.golden import sentence

HELPERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "helpers.py")


def helpers(world):
    """Load the helpers of the child tests."""
    return SimpleNamespace(**world.load(HELPERS))


# A family: a child, a grandchild in the group, one in another session, and an orphan in it.
FAMILY = (
    "sleep 1001.{0} & setsid sleep 1002.{0} & (setsid sleep 1003.{0} > /dev/null 2>&1 &) ; "
    "sleep 0.2; echo ready; touch '{1}'; sleep 1004"
)


def endings_story(world):
    use = helpers(world)
    from democrai_sandbox.sdk import tasks

    children = use.serve(world)
    answers = {}
    mark = f"{os.getpid():07}"  # of one length, so that none is a prefix of another

    def family(number):
        return ["sh", "-c", FAMILY.format(f"{mark}{number}", world.inside(f"ready{number}"))]

    async def complete(number):
        """Wait until a whole family runs."""
        while not os.path.exists(world.inside(f"ready{number}")):
            await asyncio.sleep(0.02)

    async def under_way(command):
        """Run a program into its timeout, with longer timeouts until it has started completely."""
        for seconds in (0.6, 6, 30):
            begun = time.monotonic()
            done = await tasks.run_subprocess(command, timeout=seconds)
            if done.text:
                break
        return [done.timed_out, done.returncode, done.text, time.monotonic() - begun >= seconds]

    async def timeout():
        return await under_way(family(1))

    async def stubborn():
        return await under_way(["sh", "-c", "trap '' TERM; echo on; while :; do sleep 0.05; done"])

    async def gentle():
        return await under_way(["sh", "-c", "trap 'echo bye; exit 3' TERM; echo on; while :; do sleep 0.02; done"])

    async def cancelled():
        waiting = asyncio.ensure_future(tasks.run_subprocess(family(2)))
        await complete(2)
        waiting.cancel()
        try:
            await waiting
        except asyncio.CancelledError:
            return "cancelled"
        return "ended"

    async def left_alone():
        task = asyncio.ensure_future(starts_and_leaves())
        return await task

    async def starts_and_leaves():
        from democrai_sandbox.runtime.sdk_services import call

        call("children.start", family(3), {})
        await complete(3)
        return "left"

    async def background():
        done = await tasks.run_subprocess(["sh", "-c", f"sleep 1001.{mark}4 & echo done"])
        return [done.returncode, done.text]

    async def holds_the_pipe():
        done = await tasks.run_subprocess(["sh", "-c", f"setsid sleep 1002.{mark}5 & sleep 0.1; echo done"])
        return [done.returncode, done.text]

    for number, story in enumerate((timeout, cancelled, left_alone, background, holds_the_pipe)):
        answers[story.__name__] = use.guarded(world, children, story)
        answers[f"{story.__name__} gone"] = use.gone(f".{mark}{number + 1}")
    for story in (stubborn, gentle):
        answers[story.__name__] = use.guarded(world, children, story)

    async def closing():
        from democrai_sandbox.runtime.sdk_services import call

        call("children.start", family(6), {})
        await asyncio.sleep(600)

    async def shutdown():
        children.open()
        from democrai_sandbox import process_guard_context

        guard = process_guard_context(subject="demo", allowed_paths=[world.root])
        task = asyncio.ensure_future(guard.run(closing))
        await complete(6)
        before = len(use.alive(f".{mark}6"))
        await asyncio.to_thread(children.close)
        task.cancel()
        return [before > 2, len(use.alive(f".{mark}6"))]

    answers["shutdown"] = asyncio.run(shutdown())
    answers["left"] = use.settled(children)
    answers["threads"] = sum(thread.name == "child" for thread in threading.enumerate())
    return answers


def test_nothing_of_a_child_outlives_it_or_who_waited_for_it(case):
    """Grandchildren in the group, in other sessions, and orphans: after a timeout, a cancellation, a shutdown."""
    told = case.run(endings_story)
    assert told["timeout"] == [True, -15, "ready\n", True]
    assert told["cancelled"] == "cancelled"
    assert told["left_alone"] == "left"
    assert told["background"] == [0, "done\n"]
    assert told["holds_the_pipe"] == [0, "done\n"]
    for name in ("timeout", "cancelled", "left_alone", "background", "holds_the_pipe"):
        assert told[f"{name} gone"], name
    assert told["stubborn"] == [True, -9, "on\n", True]
    assert told["gentle"] == [True, 3, "on\nbye\n", True]
    assert told["shutdown"] == [True, 0]
    assert (told["left"], told["threads"]) == (0, 0)


def output_story(world):
    use = helpers(world)
    from democrai_sandbox.sdk import tasks

    children = use.serve(world, output_limit=100_000, largest_output_limit=1 << 20, most_of_subject=3)

    async def body():
        run = lambda *argv, **more: use.told(tasks.run_subprocess(list(argv), **more))
        flood = await run("sh", "-c", "head -c 50000000 /dev/zero; head -c 30000000 /dev/zero >&2; echo end")
        small = await run("sh", "-c", "echo 12345; echo 67890 >&2", stdout_limit=3, stderr_limit=4)
        exact = await run("printf", "123", stdout_limit=3)
        text = await run("cat", input="ä" * 500_000, stdout_limit=1 << 20)
        deaf = await run("sh", "-c", "exec 0<&-; echo deaf", input=b"x" * 5_000_000)
        for seconds in (0.3, 3, 30):  # longer if it had no time to print anything
            endless = await run("yes", timeout=seconds)
            if endless.stdout:
                break
        waiting = [asyncio.ensure_future(run("sleep", "5")) for _ in range(3)]
        await asyncio.sleep(0.1)
        full = await run("true")
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for _ in range(1000):  # until those have ended
            if not isinstance(after := await run("true"), str):
                break
            await asyncio.sleep(0.02)
        refused = {
            "timeout": await run("true", timeout=0),
            "nan": await run("true", timeout=float("nan")),
            "long": await run("true", timeout=1e9),
            "limit": await run("true", stdout_limit=1 << 30),
            "input": await run("true", input=7),
            "huge": await run("true", input=b"x" * (17 << 20)),
            "words": await run("true", *["x"] * 5000),
            "nul": await run("true", "\0"),
            "type": await run("true", 7),
        }
        return {
            "flood": [len(flood.stdout), len(flood.stderr), flood.truncated, flood.returncode],
            "small": [small.text, small.stderr.decode(), small.truncated],
            "exact": [exact.text, exact.truncated],
            "text": [len(text.text), text.truncated],
            "deaf": [deaf.returncode, deaf.text],
            "endless": [len(endless.stdout), endless.timed_out, endless.truncated],
            "full": full,
            "after": after.returncode,
            "refused": {key: value.partition(":")[0] for key, value in refused.items()},
            "not a program": await run(use.script(world, "broken", "\x7fELF nonsense")),
        }

    rule = {"resource_type": "filesystem", "operation": "execute", "target": world.inside("broken")}
    answers = use.guarded(world, children, body, access=[rule])
    # Not ru_maxrss, which starts with the memory of the forking process.
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    answers["memory"] = int(status["VmHWM"].split()[0])
    return answers


def test_output_is_kept_up_to_its_limit_and_the_rest_is_dropped(case):
    """Floods neither fill the memory nor block the child; truncation is reported; invalid limits are refused."""
    told = case.run(output_story)
    assert told["flood"] == [100_000, 100_000, True, 0]
    assert told["small"] == ["123", "6789", True]
    assert told["exact"] == ["123", False]
    assert told["text"] == [500_000, False]
    assert told["deaf"] == [0, "deaf\n"]
    assert told["endless"] == [100_000, True, True]
    sentence("too many", told["full"])
    assert told["after"] == 0
    assert set(told["refused"].values()) == {"InvalidInputError"}
    assert told["not a program"].startswith("RuntimeServiceFailed: ")
    assert os.strerror(errno.ENOEXEC) in told["not a program"]
    assert told["memory"] < 200_000


def streams_story(world):
    use = helpers(world)
    from democrai_sandbox.sdk import tasks

    children = use.serve(world)
    mark = f"7777.{os.getpid():07}"

    async def body():
        answers = {}
        child = tasks.stream_subprocess(
            ["sh", "-c", "echo one; echo err >&2; sleep 0.1; echo two; printf three; exit 4"]
        )
        answers["lines"] = [line.decode() async for line in child]
        done = await child.wait()
        answers["end"] = [done.returncode, done.stderr.decode(), done.stdout.decode()]
        counted = 0
        async for line in tasks.stream_subprocess(["seq", "20000"]):
            counted += 1
        answers["many"] = [counted, line.decode()]
        async with tasks.stream_subprocess(["sh", "-c", f"yes; : {mark}"]) as endless:
            async for line in endless:
                break
            await asyncio.sleep(0.3)
            with open("/proc/self/statm") as file:
                answers["memory"] = int(file.read().split()[1]) * 4096 < 200 << 20
        answers["stopped"] = await use.told(endless.wait())
        async with tasks.stream_subprocess(["sh", "-c", "head -c 3000000 /dev/zero | tr '\\0' x"]) as long:
            answers["long"] = [len(line) async for line in long]
        for seconds in (0.3, 3, 20):  # longer if it had no time to print anything
            late = tasks.stream_subprocess(["sh", "-c", "echo 1; sleep 300"], timeout=seconds)
            answers["late"] = [line.decode() async for line in late], (await late.wait()).timed_out
            if answers["late"][0]:
                break
        waiting = asyncio.ensure_future(tasks.stream_subprocess(["sh", "-c", f"sleep 30; : {mark}"]).wait())
        await asyncio.sleep(0.2)
        waiting.cancel()
        answers["cancelled"] = type((await asyncio.gather(waiting, return_exceptions=True))[0]).__name__
        lost = tasks.stream_subprocess(["sh", "-c", "seq 100000"])
        answers["unread"] = (await lost.wait()).returncode
        answers["dropped"] = await dropped()
        return answers

    async def dropped():
        async for line in tasks.stream_subprocess(["sh", "-c", f"while echo x; do sleep 0.01; done; : {mark}"]):
            return line.decode()

    async def host():
        from democrai_sandbox import process_guard_context

        children.open()
        guard = process_guard_context(subject="demo", allowed_paths=[world.root])
        await guard.run(dropped)
        return await asyncio.to_thread(use.gone, mark)

    answers = use.guarded(world, children, body)
    answers["gone"] = use.gone(mark)
    answers["gone while the host goes on"] = asyncio.run(host())
    answers["left"] = use.settled(children)
    return answers


def test_output_can_be_read_while_the_child_runs(case):
    """Line by line, the child waits for its reader; a reader that stops ends the child."""
    told = case.run(streams_story)
    assert told["lines"] == ["one\n", "two\n", "three"]
    assert told["end"] == [4, "err\n", ""]
    assert told["many"] == [20000, "20000\n"]
    assert told["memory"]
    assert told["stopped"].startswith("InvalidInputError: /handle: ")
    assert (sum(told["long"]), max(told["long"])) == (3_000_000, 1 << 20)
    assert told["late"] == [["1\n"], True]
    assert told["cancelled"] == "CancelledError"
    assert told["unread"] == 0
    assert told["dropped"] == "x\n"
    assert told["gone"]
    assert told["gone while the host goes on"]
    assert told["left"] == 0
