"""psutil: the process, memory, processors and disks."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    import psutil

    process = psutil.Process()
    path = os.path.join(folder, "open.txt")
    with open(path, "w", encoding="utf-8"):
        opened = os.path.realpath(path) in [item.path for item in process.open_files()]
    with process.oneshot():
        facts = {
            "pid": process.pid == os.getpid(),
            "rss": process.memory_info().rss > 1_000_000,
            "threads": process.num_threads() >= 1,
            "parent": process.ppid() == os.getppid(),
            "status": process.status() in (psutil.STATUS_RUNNING, psutil.STATUS_SLEEPING),
            "command": len(process.cmdline()) > 0,
            "cpu": process.cpu_times().user >= 0,
            "started": process.create_time() > 1_000_000_000,
            "cwd": process.cwd() == os.getcwd(),
        }
    memory = psutil.virtual_memory()
    try:
        psutil.Process(2**22 + 5)
        missing = "found"
    except psutil.NoSuchProcess:
        missing = "no such process"
    assert all(facts.values())
    return {
        **facts,
        "opened": opened,
        "cpus": psutil.cpu_count() >= 1,
        "memory": 0 < memory.available <= memory.total,
        "percent": psutil.cpu_percent(interval=0.05) >= 0,
        "disk": psutil.disk_usage(folder).total > 0,
        "boot": psutil.boot_time() > 0,
        "listed": os.getpid() in psutil.pids(),
        "swap": psutil.swap_memory().total >= 0,
        "missing": missing,
    }
