"""Driver (b): CPython's own regression tests under a guard that grants their folder, compared with a run without it."""

from __future__ import annotations

from tests.oracle.judge import LATE, Finding, Judge, Policy, judge_refusal
from tests.oracle.tracing import Traced

SPAN = 4096
PATIENCE = 90
MODULES = """
test_os test_posix test_posixpath test_genericpath test_shutil test_tempfile test_pathlib test_glob test_io test_fileio
test_bufio test_memoryio test_file test_fileinput test_tarfile test_gzip test_bz2 test_lzma test_zlib
test_sqlite3 test_dbm_dumb test_shelve test_marshal test_mmap test_select test_selectors test_epoll test_poll
test_socket test_socketserver test_httplib test_urllib test_subprocess test_signal test_threading test_thread test_queue
test_contextlib test_context test_gc test_weakref test_sys test_builtin test_pkgutil test_runpy test_compile test_code
test_inspect test_symtable test_traceback test_logging test_json test_csv test_struct test_array test_time test_locale
test_gettext test_codecs test_hashlib test_random test_uuid test_pwd test_grp test_resource test_fcntl test_ioctl
test_tty test_pty test_atexit test_syslog test_configparser test_mimetypes test_netrc test_stat test_filecmp
test_linecache test_zipimport test_mailbox test_platform test_getpass test_functools test_itertools test_enum
test_xml_etree test_pyexpat test_plistlib test_ssl test_concurrent_futures test_asyncio
test_curses test_readline test_termios test_tokenize test_ast test_copy test_pickle test_dataclasses
""".split()


class Run(Traced):
    """One run of the program testing.py, and what it and the tracer recorded."""

    def __init__(self, python, work, modules, *, guarded):
        super().__init__(python, "testing.py", work, modules=modules, guarded=guarded, patience=PATIENCE)
        self._read_record()

    def _read_record(self):
        """Read the outcomes by test, and the refusals during each."""
        self.outcomes, self.denials, self.windows, self.modules = {}, {}, {}, {}
        current = None
        for kind, *fields in self.lines:
            if kind == "start":
                self.policy = Policy(fields[0])
            elif kind == "module":
                current = f"test.{fields[1]}"
                self.modules[fields[1]] = fields[2:]
                self.windows[fields[0] * SPAN] = current
            elif kind == "test":
                current = fields[1]
                self.windows[fields[0]] = current
            elif kind == "denied":
                self.denials.setdefault(current, []).append(fields)
            elif kind == "outcome":
                self.outcomes[fields[1]] = fields[2:]
            elif kind == "broken":
                self.outcomes[f"test.{fields[0]}"] = ["broken", fields[1]]

    def explanation(self, test):
        """Return the refusal of something outside the policy during a test, or None."""
        own = self.denials.get(test, [])
        about_class = [
            one for name, ones in self.denials.items() if name and test.startswith(name + ".") for one in ones
        ]
        for code, operation, target in own + about_class:
            if not judge_refusal(self.policy, code, operation, target):
                return f"{code}:{target}"
        return None


def findings(guarded, bare):
    """Yield the findings of a guarded run: holes, wrong refusals, and tests that fail only there without a refusal."""
    judge = Judge(guarded.policy, secrets=("/nothing",))
    with open(guarded.report_path) as report:
        for line in report:
            found = judge.judge(line)
            if found is not None:
                yield guarded.windows.get(found.window & ~LATE, "?"), found
    for test, refusals in guarded.denials.items():
        for code, operation, target in refusals:
            if judge_refusal(guarded.policy, code, operation, target):
                yield test, Finding("bug", 0, code, f"{operation} {target}")
    for test, (word, text) in guarded.outcomes.items():
        before = bare.outcomes.get(test, ["absent"])[0]
        if word in ("failed", "broken") and before == "ok" and guarded.explanation(test) is None:
            yield test, Finding("fails", 0, "", text)
    for name, (status, _) in guarded.modules.items():
        if status != 0 and bare.modules.get(name, [1])[0] == 0:
            last = [window for window, test in guarded.windows.items() if test.startswith(f"test.{name}.")]
            test = guarded.windows[max(last)] if last else f"test.{name}"
            if guarded.explanation(test) is None:
                yield test, Finding("hangs" if status == "late" else "crashes", 0, "", f"status {status}")


def explained(guarded, bare):
    """Return the tests that fail under the guard because it refused something outside the policy."""
    return [
        test
        for test, (word, _) in guarded.outcomes.items()
        if word in ("failed", "broken") and bare.outcomes.get(test, ["absent"])[0] == "ok" and guarded.explanation(test)
    ]
