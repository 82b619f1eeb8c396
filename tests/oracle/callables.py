"""Driver (a): every callable of every native module that guarded code loads, called with hostile arguments."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from string import Template

from tests.oracle.judge import LATE, Finding, Judge, Policy, judge_refusal
from tests.oracle.tracing import Traced

FOLDER = Path(__file__).parent
SPAN = 256
CALLS = 30


class Run(Traced):
    """One run of the program calling.py, and what it and the tracer recorded."""

    def __init__(self, python, work, **spec):
        super().__init__(python, "calling.py", work, **{"calls": CALLS, **spec})
        self._read_record()

    def _read_record(self):
        of = lambda kind: [line[1:] for line in self.lines if line[0] == kind]
        self.absent, entries, self.places = of("start")[0]
        self.policy = Policy(entries)
        self.names = {index: name for index, name, _, _ in of("done")}
        self.outcomes = {name: Counter() for _, name, _, _ in of("done")}
        self.acting = set()
        for _, name, outcomes, acting in of("done"):
            self.outcomes[name].update(outcomes)
            self.acting.update(acting)
        self.denials = {window: fields for window, *fields in of("denied")}
        self.lost = of("lost")
        self.damage = of("damage")
        self.broken = of("broken")
        self.sources = {window: fields for window, *fields in of("source")}
        self.chosen, self.total, self.without_instance = of("targets")[0]
        self.all_names = of("names")[0][0]

    @property
    def calls(self):
        return sum(sum(outcomes.values()) for outcomes in self.outcomes.values())

    def findings(self):
        """Yield every finding, with its window."""
        judge = Judge(
            self.policy,
            self.denials,
            secrets=(self.places["OUTSIDE"],),
            victims=(self.places["VICTIM"], self.places["PARENT"]),
            ports=(str(self.places["PORT"]), str(self.places["UDP_PORT"])),
        )
        self.touched = set()
        with open(self.report_path) as report:
            for line in report:
                fields = line.split("\t", 4)
                window = int(fields[1])
                if fields[0] == "call" and not window & LATE and window not in self.acting:
                    self.touched.add(window // SPAN)
                found = judge.judge(line)
                if found is not None:
                    yield found
        yield from self._other_findings()

    def _other_findings(self):
        for window, (code, operation, target) in self.denials.items():
            leads_out = target == self.places["LINK"]
            if not leads_out and judge_refusal(self.policy, code, operation, target):
                yield Finding("bug", window, code, f"{operation} {target}")
        for window, status in self.lost:
            kind = status if isinstance(status, str) else "ends" if status >= 0 else "crashes"
            yield Finding(kind, window, "", f"status {status}" if isinstance(status, int) else "")
        for window, changed in self.damage:
            for name, (before, after) in changed.items():
                yield Finding("damage", window, name, f"{before} -> {after}")
        for window, text in self.broken:
            yield Finding("broken", window, "", text.strip().splitlines()[-1])

    def name_of(self, window):
        return self.all_names[window // SPAN]


def unique(run):
    """Return the first finding of each kind per callable, and how often it came up."""
    found, base = {}, run.places["BASE"]
    for finding in run.findings():
        key = (run.name_of(finding.window), finding.kind, finding.call, finding.object.replace(base, "BASE"))
        first, times = found.get(key, (finding, 0))
        found[key] = (first, times + 1)
    return found


def confirm(run, python, work, found):
    """Make each finding's call again, alone in a process; return those that came up again, and the sources of all."""
    windows = sorted({finding.window for finding, _ in found.values() if finding.kind != "damage"})
    if not windows:
        return set(), {}
    again = Run(python, work, windows=windows)
    return set(unique(again)), again.sources


def reproduction(source, finding):
    """Return a script that makes one call inside a guard."""
    target, positional, keywords, owner, instance = source
    args = ", ".join([*positional, *(f"{name}={value}" for name, value in keywords.items())])
    module, _, rest = target.partition(".")
    call = f"import_module({module!r}).{rest}({args})"
    if owner is not None:
        entry = f"vars(KIND({owner!r}))[{rest.rpartition('.')[2]!r}]"
        call = f"{entry}.__get__({instance}, KIND({owner!r}))({args})"
    parts = {
        "kind": finding.kind,
        "summary": f"{target}: {finding.call} {finding.object} {finding.result}",
        "world": (FOLDER / "world.py").read_text(),
        "subject": (FOLDER / "subject.py").read_text(),
        "call": call,
    }
    return Template(REPRODUCTION).substitute(parts)


REPRODUCTION = """$world

# $kind: $summary
# Run it in a container: it makes a call that the guard must refuse.
import tempfile

from democrai_sandbox import process_guard_context

SUBJECT = r'''
$subject

def KIND(name):
    waiting = [object]
    while waiting:
        for kind in type.__subclasses__(waiting.pop()):
            waiting.append(kind)
            if f"{kind.__module__}.{kind.__qualname__}" == name:
                return kind
    module, _, rest = name.partition(".")
    return getattr(import_module(module), rest)


def call():
    from importlib import import_module

    globals()["import_module"] = import_module
    mark(1)
    return $call
'''

base = tempfile.mkdtemp()
os.makedirs(base + "/tmp")
tempfile.tempdir = base + "/tmp"
places = lay_out(base)
held, objects = host_objects(places)
names = {**places, **objects, "PARENT": os.getpid(), "__name__": "subject", "mark": mark}


def run():
    exec(compile(SUBJECT, "subject", "exec"), names)
    return names["call"]()


os.chdir(places["ROOT"])
try:
    print(repr(process_guard_context(subject="oracle", allowed_paths=[places["ROOT"]]).run(run)))
finally:
    mark(0, END)
    os.kill(objects["VICTIM"], 9)
"""
