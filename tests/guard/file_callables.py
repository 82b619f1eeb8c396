"""Every callable of the file modules, classified by its arguments: path, descriptor, or neither.

A recipe calls one function with something outside the roots. Private Python functions (a leading underscore in os,
shutil, pathlib, posixpath) are composed of the others and left out; every other callable must be listed here, also when
it first appears in a later Python.
"""

from __future__ import annotations

import _io
import genericpath
import inspect
import io
import os
import pathlib
import posix
import posixpath
import shutil
import sys

# --- functions of posix, and through it of os: recipe(module, places)
# ----------------------------------------------------

POSIX_PATH = {
    "access": [lambda m, p: m.access(p.file, m.R_OK), lambda m, p: m.access(p.file, m.F_OK, effective_ids=True)],
    "chdir": [lambda m, p: m.chdir(p.dir)],
    "chmod": [lambda m, p: m.chmod(p.file, 0o600)],
    "chown": [lambda m, p: m.chown(p.file, -1, -1), lambda m, p: m.chown(p.link, -1, -1, follow_symlinks=False)],
    "chroot": [lambda m, p: m.chroot(p.missing)],
    "execv": [lambda m, p: m.execv(p.missing, ["x"])],
    "execve": [lambda m, p: m.execve(p.missing, ["x"], {})],
    "getxattr": [lambda m, p: m.getxattr(p.file, "user.none")],
    "lchown": [lambda m, p: m.lchown(p.file, -1, -1)],
    "link": [lambda m, p: m.link(p.file, p.new), lambda m, p: m.link(p.inside, p.missing)],
    "listdir": [lambda m, p: m.listdir(p.dir)],
    "listxattr": [lambda m, p: m.listxattr(p.file)],
    "lstat": [lambda m, p: m.lstat(p.link), lambda m, p: m.lstat(p.file)],
    "mkdir": [lambda m, p: m.mkdir(p.missing)],
    "mkfifo": [lambda m, p: m.mkfifo(p.missing)],
    "mknod": [lambda m, p: m.mknod(p.missing)],
    "open": [
        lambda m, p: m.close(m.open(p.file, m.O_RDONLY)),
        lambda m, p: m.close(m.open(p.missing, m.O_CREAT | m.O_WRONLY)),
        lambda m, p: m.close(m.open(p.file, m.O_PATH)),
        lambda m, p: m.close(m.open(p.dir, m.O_TMPFILE | m.O_WRONLY)),
    ],
    "pathconf": [lambda m, p: m.pathconf(p.file, "PC_NAME_MAX")],
    "posix_spawn": [lambda m, p: m.posix_spawn(p.missing, ["x"], {})],
    "posix_spawnp": [lambda m, p: m.posix_spawnp(p.missing, ["x"], {})],
    "readlink": [lambda m, p: m.readlink(p.link)],
    "remove": [lambda m, p: m.remove(p.file)],
    "removexattr": [lambda m, p: m.removexattr(p.file, "user.none")],
    "rename": [lambda m, p: m.rename(p.file, p.new), lambda m, p: m.rename(p.inside, p.missing)],
    "replace": [lambda m, p: m.replace(p.file, p.new), lambda m, p: m.replace(p.inside, p.file)],
    "rmdir": [lambda m, p: m.rmdir(p.empty)],
    "scandir": [lambda m, p: m.scandir(p.dir).close()],
    "setxattr": [lambda m, p: m.setxattr(p.file, "user.none", b"x")],
    "stat": [lambda m, p: m.stat(p.file), lambda m, p: m.stat(p.link, follow_symlinks=False)],
    "statvfs": [lambda m, p: m.statvfs(p.file)],
    "symlink": [lambda m, p: m.symlink(p.file, p.new), lambda m, p: m.symlink(p.inside, p.missing)],
    "truncate": [lambda m, p: m.truncate(p.file, 1)],
    "unlink": [lambda m, p: m.unlink(p.file)],
    "utime": [lambda m, p: m.utime(p.file), lambda m, p: m.utime(p.link, follow_symlinks=False)],
}

# Foreign descriptors: recipe(module, descriptors); .file is open for reading and writing, .dir is a directory, .own was
# created by the caller, .pipe is one end of a foreign pipe.
POSIX_FD = {
    "chdir": [lambda m, d: m.chdir(d.dir)],
    "chmod": [lambda m, d: m.chmod(d.file, 0o600)],
    "chown": [lambda m, d: m.chown(d.file, -1, -1)],
    "close": [lambda m, d: m.close(d.spare)],
    "closerange": [lambda m, d: m.closerange(d.spare, d.spare + 1)],
    "copy_file_range": [
        lambda m, d: m.copy_file_range(d.file, d.own, 1),
        lambda m, d: m.copy_file_range(d.own, d.file, 1),
    ],
    "dup": [lambda m, d: m.close(m.dup(d.file))],
    "dup2": [lambda m, d: m.dup2(d.file, d.own), lambda m, d: m.dup2(d.own, d.spare)],
    "eventfd_read": [lambda m, d: m.eventfd_read(d.file)],
    "eventfd_write": [lambda m, d: m.eventfd_write(d.file, 1)],
    "execve": [lambda m, d: m.execve(d.file, ["x"], {})],
    "fchdir": [lambda m, d: m.fchdir(d.dir)],
    "fchmod": [lambda m, d: m.fchmod(d.file, 0o600)],
    "fchown": [lambda m, d: m.fchown(d.file, -1, -1)],
    "fpathconf": [lambda m, d: m.fpathconf(d.file, "PC_NAME_MAX")],
    "fstat": [lambda m, d: m.fstat(d.file)],
    "fstatvfs": [lambda m, d: m.fstatvfs(d.file)],
    "ftruncate": [lambda m, d: m.ftruncate(d.file, 1)],
    "getxattr": [lambda m, d: m.getxattr(d.file, "user.none")],
    "listdir": [lambda m, d: m.listdir(d.dir)],
    "listxattr": [lambda m, d: m.listxattr(d.file)],
    "lockf": [lambda m, d: m.lockf(d.file, m.F_TLOCK, 1)],
    "login_tty": [lambda m, d: m.login_tty(d.file)],
    "lseek": [lambda m, d: m.lseek(d.file, 0, 0)],
    "pathconf": [lambda m, d: m.pathconf(d.file, "PC_NAME_MAX")],
    "posix_fadvise": [lambda m, d: m.posix_fadvise(d.file, 0, 0, 0)],
    "posix_fallocate": [lambda m, d: m.posix_fallocate(d.file, 0, 9)],
    "pread": [lambda m, d: m.pread(d.file, 1, 0)],
    "preadv": [lambda m, d: m.preadv(d.file, [bytearray(1)], 0)],
    "pwrite": [lambda m, d: m.pwrite(d.file, b"x", 0)],
    "pwritev": [lambda m, d: m.pwritev(d.file, [b"x"], 0)],
    "read": [lambda m, d: m.read(d.file, 1), lambda m, d: m.read(d.pipe, 1)],
    "readv": [lambda m, d: m.readv(d.file, [bytearray(1)])],
    "removexattr": [lambda m, d: m.removexattr(d.file, "user.none")],
    "scandir": [lambda m, d: m.scandir(d.dir).close()],
    "sendfile": [lambda m, d: m.sendfile(d.own, d.file, 0, 1), lambda m, d: m.sendfile(d.file, d.own, 0, 1)],
    "set_blocking": [lambda m, d: m.set_blocking(d.file, True)],
    "set_inheritable": [lambda m, d: m.set_inheritable(d.file, False)],
    "setns": [lambda m, d: m.setns(d.file, 0)],
    "setxattr": [lambda m, d: m.setxattr(d.file, "user.none", b"x")],
    "splice": [lambda m, d: m.splice(d.file, d.own_pipe, 1), lambda m, d: m.splice(d.own_pipe, d.file, 1)],
    "stat": [lambda m, d: m.stat(d.file)],
    "statvfs": [lambda m, d: m.statvfs(d.file)],
    "timerfd_settime": [lambda m, d: m.timerfd_settime(d.file, initial=1)],
    "timerfd_settime_ns": [lambda m, d: m.timerfd_settime_ns(d.file, initial=1)],
    "truncate": [lambda m, d: m.truncate(d.file, 1)],
    "utime": [lambda m, d: m.utime(d.file)],
    "write": [lambda m, d: m.write(d.file, b"x"), lambda m, d: m.write(d.pipe, b"x")],
    "writev": [lambda m, d: m.writev(d.file, [b"x"])],
}

# They query the type of a descriptor (open() itself calls isatty), or fail for everything except a terminal or timer;
# syncing neither reveals nor changes anything.
POSIX_FD_HARMLESS = set(
    "device_encoding fdatasync fsync get_blocking get_inheritable get_terminal_size grantpt isatty ptsname tcgetpgrp "
    "tcsetpgrp timerfd_gettime timerfd_gettime_ns ttyname unlockpt".split()
)

# dir_fd and related parameters: recipe(module, descriptors, places)
POSIX_DIR_FD = {
    "access": lambda m, d, p: m.access("secret.txt", m.R_OK, dir_fd=d.dir),
    "chmod": lambda m, d, p: m.chmod("secret.txt", 0o600, dir_fd=d.dir),
    "chown": lambda m, d, p: m.chown("secret.txt", -1, -1, dir_fd=d.dir),
    "link": lambda m, d, p: m.link("secret.txt", p.new, src_dir_fd=d.dir),
    "lstat": lambda m, d, p: m.lstat("secret.txt", dir_fd=d.dir),
    "mkdir": lambda m, d, p: m.mkdir("fresh", dir_fd=d.dir),
    "mkfifo": lambda m, d, p: m.mkfifo("fresh", dir_fd=d.dir),
    "mknod": lambda m, d, p: m.mknod("fresh", dir_fd=d.dir),
    "open": lambda m, d, p: m.close(m.open("secret.txt", m.O_RDONLY, dir_fd=d.dir)),
    "readlink": lambda m, d, p: m.readlink("link", dir_fd=d.dir),
    "remove": lambda m, d, p: m.remove("secret.txt", dir_fd=d.dir),
    "rename": lambda m, d, p: m.rename("secret.txt", "fresh", src_dir_fd=d.dir, dst_dir_fd=d.dir),
    "replace": lambda m, d, p: m.replace(p.inside, "fresh", dst_dir_fd=d.dir),
    "rmdir": lambda m, d, p: m.rmdir("empty", dir_fd=d.dir),
    "stat": lambda m, d, p: m.stat("secret.txt", dir_fd=d.dir),
    "symlink": lambda m, d, p: m.symlink(p.inside, "fresh", dir_fd=d.dir),
    "unlink": lambda m, d, p: m.unlink("secret.txt", dir_fd=d.dir),
    "utime": lambda m, d, p: m.utime("secret.txt", dir_fd=d.dir),
}

# They work on the text of a path and never access the disk.
LEXICAL = {"fspath", "_path_normpath", "_path_splitroot_ex"}

POSIX_NEITHER = LEXICAL | set(
    # values, types, text
    "DirEntry WCOREDUMP WEXITSTATUS WIFCONTINUED WIFEXITED WIFSIGNALED WIFSTOPPED WSTOPSIG WTERMSIG error "
    "sched_param stat_result statvfs_result strerror terminal_size times_result uname_result waitid_result "
    "waitstatus_to_exitcode major minor makedev "
    # the process and the machine
    "_exit abort confstr cpu_count ctermid fork forkpty getcwd getcwdb getegid geteuid getgid getgrouplist getgroups "
    "getloadavg getlogin getpgid getpgrp getpid getppid getpriority getrandom getresgid getresuid getsid getuid "
    "initgroups kill killpg nice register_at_fork sched_get_priority_max sched_get_priority_min sched_getaffinity "
    "sched_getparam sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setparam sched_setscheduler "
    "sched_yield setegid seteuid setgid setgroups setpgid setpgrp setpriority setregid setresgid setresuid "
    "setreuid setsid setuid "
    "sync sysconf system times umask uname unshare urandom wait wait3 wait4 waitid waitpid _inputhook "
    "_is_inputhook_installed "
    # the environment
    "putenv unsetenv "
    # they create descriptors
    "eventfd memfd_create openpty pidfd_open pipe pipe2 posix_openpt timerfd_create".split()
)

# --- functions of os that are written in Python
# --------------------------------------------------------------------------

OS_PATH = {
    "makedirs": [lambda m, p: m.makedirs(p.missing)],
    "removedirs": [lambda m, p: m.removedirs(p.empty)],
    "renames": [lambda m, p: m.renames(p.file, p.new), lambda m, p: m.renames(p.inside, p.missing)],
    "execl": [lambda m, p: m.execl(p.missing, "x")],
    "execle": [lambda m, p: m.execle(p.missing, "x", {})],
    "execlp": [lambda m, p: m.execlp(p.missing, "x")],
    "execlpe": [lambda m, p: m.execlpe(p.missing, "x", {})],
    "execvp": [lambda m, p: m.execvp(p.missing, ["x"])],
    "execvpe": [lambda m, p: m.execvpe(p.missing, ["x"], {})],
    "spawnl": [lambda m, p: m.spawnl(m.P_WAIT, p.missing, "x")],
    "spawnle": [lambda m, p: m.spawnle(m.P_WAIT, p.missing, "x", {})],
    "spawnlp": [lambda m, p: m.spawnlp(m.P_WAIT, p.missing, "x")],
    "spawnlpe": [lambda m, p: m.spawnlpe(m.P_WAIT, p.missing, "x", {})],
    "spawnv": [lambda m, p: m.spawnv(m.P_WAIT, p.missing, ["x"])],
    "spawnve": [lambda m, p: m.spawnve(m.P_WAIT, p.missing, ["x"], {})],
    "spawnvp": [lambda m, p: m.spawnvp(m.P_WAIT, p.missing, ["x"])],
    "spawnvpe": [lambda m, p: m.spawnvpe(m.P_WAIT, p.missing, ["x"], {})],
}
# They suppress every OSError by design: under a guard they must behave as if nothing existed.
OS_BLIND = {
    "walk": [lambda m, p: list(m.walk(p.dir))],
    "fwalk": [lambda m, p: list(m.fwalk(p.dir))],
}
OS_FD = {"fdopen": [lambda m, d: m.fdopen(d.file, closefd=False).close()]}
OS_NEITHER = set(
    "GenericAlias Mapping MutableMapping PathLike fsdecode fsencode get_exec_path getenv getenvb popen "
    "process_cpu_count".split()
)

# --- io --------------------------------------------------------------------------------------------------------------

IO_PATH = {
    "FileIO": [lambda m, p: m.FileIO(p.file).close(), lambda m, p: m.FileIO(p.missing, "w").close()],
    "open": [lambda m, p: m.open(p.file).close(), lambda m, p: m.open(p.missing, "w").close()],
    "open_code": [lambda m, p: m.open_code(os.fsdecode(p.file)).close()],
}
IO_FD = {
    "FileIO": [
        lambda m, d: m.FileIO(d.file, closefd=False).close(),
        lambda m, d: m.FileIO(d.file, "w", closefd=False).close(),
    ],
    "open": [lambda m, d: m.open(d.file, closefd=False).close()],
}
IO_NEITHER = set(
    "BlockingIOError BufferedIOBase BufferedRWPair BufferedRandom BufferedReader BufferedWriter BytesIO IOBase "
    "IncrementalNewlineDecoder RawIOBase StringIO TextIOBase TextIOWrapper UnsupportedOperation _BufferedIOBase "
    "_BytesIOBuffer _IOBase _RawIOBase _TextIOBase text_encoding".split()
)

# --- os.path ---------------------------------------------------------------------------------------------------------

PATH_PROBES = {
    "exists": [lambda m, p: m.exists(p.file)],
    "getatime": [lambda m, p: m.getatime(p.file)],
    "getctime": [lambda m, p: m.getctime(p.file)],
    "getmtime": [lambda m, p: m.getmtime(p.file)],
    "getsize": [lambda m, p: m.getsize(p.file)],
    "isdir": [lambda m, p: m.isdir(p.dir)],
    "isfile": [lambda m, p: m.isfile(p.file)],
    "islink": [lambda m, p: m.islink(p.link)],
    "ismount": [lambda m, p: m.ismount(p.dir)],
    "lexists": [lambda m, p: m.lexists(p.link)],
    "samefile": [lambda m, p: m.samefile(p.file, p.file), lambda m, p: m.samefile(p.inside, p.file)],
}
PATH_BLIND = {"realpath": [lambda m, p: m.realpath(p.link)]}
PATH_FD = {"sameopenfile": [lambda m, d: m.sameopenfile(d.file, d.file)]}
PATH_NEITHER = set(
    "abspath basename commonpath commonprefix dirname expanduser expandvars isabs isdevdrive isjunction join normcase "
    "normpath relpath samestat split splitdrive splitext splitroot".split()
)

# --- shutil ----------------------------------------------------------------------------------------------------------

SHUTIL_PATH = {
    "chown": [lambda m, p: m.chown(p.file, user=os.getuid())],
    "copy": [lambda m, p: m.copy(p.file, p.new), lambda m, p: m.copy(p.inside, p.missing)],
    "copy2": [lambda m, p: m.copy2(p.file, p.new), lambda m, p: m.copy2(p.inside, p.missing)],
    "copyfile": [lambda m, p: m.copyfile(p.file, p.new), lambda m, p: m.copyfile(p.inside, p.missing)],
    "copymode": [lambda m, p: m.copymode(p.file, p.inside), lambda m, p: m.copymode(p.inside, p.file)],
    "copystat": [lambda m, p: m.copystat(p.file, p.inside), lambda m, p: m.copystat(p.inside, p.file)],
    "copytree": [lambda m, p: m.copytree(p.dir, p.new), lambda m, p: m.copytree(p.insidedir, p.missing)],
    "disk_usage": [lambda m, p: m.disk_usage(p.dir)],
    "make_archive": [
        lambda m, p: m.make_archive(p.missing, "zip", p.insidedir),
        # Older releases look for the folder first, and find as little as walk does: the archive is empty.
        *(
            lambda m, p, kind=kind: m.make_archive(p.new, kind, p.dir)
            for kind in ("zip", "tar")
            if hasattr(shutil._make_zipfile, "supports_root_dir")
        ),
    ],
    "move": [lambda m, p: m.move(p.file, p.new), lambda m, p: m.move(p.inside, p.missing)],
    "rmtree": [lambda m, p: m.rmtree(p.dir)],
    "unpack_archive": [
        lambda m, p: m.unpack_archive(p.insidezip, p.missing),
        lambda m, p: m.unpack_archive(p.tar, p.insidedir),
    ],
}
SHUTIL_BLIND = {
    "unpack_archive": [lambda m, p: m.unpack_archive(p.zip, p.insidedir, "zip")],
    "which": [lambda m, p: m.which(p.tool)],
}
SHUTIL_NEITHER = set(
    "Error ExecError ReadError RegistryError SameFileError SpecialFileError copyfileobj get_archive_formats "
    "get_terminal_size get_unpack_formats ignore_patterns register_archive_format register_unpack_format "
    "unregister_archive_format unregister_unpack_format".split()
)

# --- pathlib.Path ----------------------------------------------------------------------------------------------------

PATHLIB_PATH = {
    "chmod": [lambda m, p: m.Path(p.file).chmod(0o600)],
    "exists": [lambda m, p: m.Path(p.file).exists()],
    "group": [lambda m, p: m.Path(p.file).group()],
    "hardlink_to": [
        lambda m, p: m.Path(p.new).hardlink_to(p.file),
        lambda m, p: m.Path(p.missing).hardlink_to(p.inside),
    ],
    "is_block_device": [lambda m, p: m.Path(p.file).is_block_device()],
    "is_char_device": [lambda m, p: m.Path(p.file).is_char_device()],
    "is_dir": [lambda m, p: m.Path(p.dir).is_dir()],
    "is_fifo": [lambda m, p: m.Path(p.file).is_fifo()],
    "is_file": [lambda m, p: m.Path(p.file).is_file()],
    "is_mount": [lambda m, p: m.Path(p.dir).is_mount()],
    "is_socket": [lambda m, p: m.Path(p.file).is_socket()],
    "is_symlink": [lambda m, p: m.Path(p.link).is_symlink()],
    "iterdir": [lambda m, p: list(m.Path(p.dir).iterdir())],
    "link_to": [lambda m, p: m.Path(p.file).link_to(p.new)],
    "lstat": [lambda m, p: m.Path(p.link).lstat()],
    "mkdir": [lambda m, p: m.Path(p.missing).mkdir(), lambda m, p: m.Path(p.missing, "deep").mkdir(parents=True)],
    "open": [lambda m, p: m.Path(p.file).open().close(), lambda m, p: m.Path(p.missing).open("w").close()],
    "owner": [lambda m, p: m.Path(p.file).owner()],
    "read_bytes": [lambda m, p: m.Path(p.file).read_bytes()],
    "read_text": [lambda m, p: m.Path(p.file).read_text()],
    "readlink": [lambda m, p: m.Path(p.link).readlink()],
    "rename": [lambda m, p: m.Path(p.file).rename(p.new), lambda m, p: m.Path(p.inside).rename(p.missing)],
    "replace": [lambda m, p: m.Path(p.file).replace(p.new), lambda m, p: m.Path(p.inside).replace(p.file)],
    "rmdir": [lambda m, p: m.Path(p.empty).rmdir()],
    "samefile": [lambda m, p: m.Path(p.file).samefile(p.file), lambda m, p: m.Path(p.inside).samefile(p.file)],
    "stat": [lambda m, p: m.Path(p.file).stat()],
    "symlink_to": [lambda m, p: m.Path(p.new).symlink_to(p.file), lambda m, p: m.Path(p.missing).symlink_to(p.inside)],
    "touch": [lambda m, p: m.Path(p.file).touch(), lambda m, p: m.Path(p.missing).touch()],
    "unlink": [lambda m, p: m.Path(p.file).unlink(), lambda m, p: m.Path(p.missing).unlink(missing_ok=True)],
    "write_bytes": [lambda m, p: m.Path(p.file).write_bytes(b"x")],
    "write_text": [lambda m, p: m.Path(p.missing).write_text("x")],
}
PATHLIB_BLIND = {
    "glob": [lambda m, p: list(m.Path(p.dir).glob("*"))],
    "resolve": [lambda m, p: m.Path(p.link).resolve()],
    "rglob": [lambda m, p: list(m.Path(p.dir).rglob("*"))],
    "walk": [lambda m, p: list(m.Path(p.dir).walk())],
}
PATHLIB_NEITHER = set(
    "absolute as_posix as_uri cwd expanduser from_uri full_match home is_absolute is_junction is_relative_to "
    "is_reserved joinpath match relative_to with_name with_segments with_stem with_suffix".split()
)
# Only calls chmod(follow_symlinks=False), which Linux does not have.
PATHLIB_NOT_HERE = {"lchmod"}

# One row per module: (module, path functions, error-suppressing functions, descriptor functions, the rest).
MODULES = [
    (posix, POSIX_PATH, {}, POSIX_FD, POSIX_NEITHER | POSIX_FD_HARMLESS),
    (os, POSIX_PATH | OS_PATH, OS_BLIND, POSIX_FD | OS_FD, POSIX_NEITHER | POSIX_FD_HARMLESS | OS_NEITHER),
    (io, IO_PATH, {}, IO_FD, IO_NEITHER),
    (_io, IO_PATH, {}, IO_FD, IO_NEITHER),
    (genericpath, PATH_PROBES, PATH_BLIND, PATH_FD, PATH_NEITHER),
    (posixpath, PATH_PROBES, PATH_BLIND, PATH_FD, PATH_NEITHER),
    (shutil, SHUTIL_PATH, SHUTIL_BLIND, {}, SHUTIL_NEITHER),
    (pathlib, PATHLIB_PATH, PATHLIB_BLIND, {}, PATHLIB_NEITHER | PATHLIB_NOT_HERE),
]
PATHLIB_TYPES = set("Path PosixPath PurePath PurePosixPath PureWindowsPath UnsupportedOperation WindowsPath".split())


def callables(module):
    """Return the names of a module that must be classified; for pathlib, the methods of Path."""
    if module is pathlib:
        return {
            name for name in dir(pathlib.Path) if not name.startswith("_") and callable(getattr(pathlib.Path, name))
        }
    written_in_c = module in {posix, _io}
    return {
        name
        for name, value in vars(module).items()
        if callable(value)
        and not name.startswith("__")
        and (written_in_c or not name.startswith("_"))
        and not inspect.ismodule(value)
    }


def own_doors(module):
    """Return the names of a module whose objects are defined there: os.stat is posix.stat, and is tested once."""
    source = {os: posix, io: _io, posixpath: genericpath}.get(module)
    if source is None:
        return callables(module)
    return {name for name in callables(module) if getattr(module, name) is not getattr(source, name, None)}


def unclassified():
    """Return callables that no table lists, and those in contradicting tables."""
    unknown, twice = [], []
    for module, paths, blind, descriptors, neither in MODULES:
        known = set(paths) | set(blind) | set(descriptors) | neither
        unknown += [f"{module.__name__}.{name}" for name in sorted(callables(module) - known)]
        twice += [
            f"{module.__name__}.{name}" for name in sorted(neither & (set(paths) | set(blind) | set(descriptors)))
        ]
    public = {name for name, value in vars(pathlib).items() if inspect.isclass(value) and not name.startswith("_")}
    imported = {"Sequence", "attrgetter"}
    unknown += [f"pathlib.{name}" for name in sorted(public - PATHLIB_TYPES - imported)]
    return unknown, twice


def accepting(parameter):
    """Return the functions of posix that have this parameter, by text signatures or os.supports_*."""
    named = {
        name
        for name in callables(posix)
        if parameter in (getattr(getattr(posix, name), "__text_signature__", None) or "")
    }
    if parameter == "dir_fd":
        named |= {function.__name__ for function in os.supports_dir_fd}
    return sorted(named)
