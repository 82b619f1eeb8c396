"""watchdog: a polling observer on the folder."""

from __future__ import annotations


def main(folder: str) -> object:
    import os
    import queue

    from watchdog.events import FileCreatedEvent, FileSystemEventHandler, PatternMatchingEventHandler
    from watchdog.observers.polling import PollingObserver
    from watchdog.utils.dirsnapshot import DirectorySnapshot, DirectorySnapshotDiff

    events: queue.Queue = queue.Queue()

    class Handler(FileSystemEventHandler):
        def on_created(self, event):
            events.put(["created", os.path.basename(event.src_path)])

        def on_moved(self, event):
            events.put(["moved", os.path.basename(event.dest_path)])

        def on_deleted(self, event):
            events.put(["deleted", os.path.basename(event.src_path)])

    def wait_for(kind: str) -> list:
        while True:
            event = events.get(timeout=10)
            if event[0] == kind:
                return event

    before = DirectorySnapshot(folder)
    observer = PollingObserver(timeout=0.1)
    observer.schedule(Handler(), folder, recursive=True)
    observer.start()
    seen = []
    first, second = os.path.join(folder, "a.txt"), os.path.join(folder, "b.txt")
    try:
        with open(first, "w", encoding="utf-8") as file:
            file.write("hello")
        seen.append(wait_for("created"))
        os.rename(first, second)
        seen.append(wait_for("moved"))
        difference = DirectorySnapshotDiff(before, DirectorySnapshot(folder))
        os.remove(second)
        seen.append(wait_for("deleted"))
    finally:
        observer.stop()
        observer.join(10)
    matched = []

    class PythonFiles(PatternMatchingEventHandler):
        def on_created(self, event):
            matched.append(os.path.basename(event.src_path))

    patterns = PythonFiles(patterns=["**/*.py"], ignore_directories=True, case_sensitive=True)
    for name in ("a.py", "a.txt"):
        patterns.dispatch(FileCreatedEvent(os.path.join(folder, name)))
    assert not observer.is_alive() and matched == ["a.py"]
    return {"seen": seen, "difference": [os.path.basename(p) for p in difference.files_created], "matched": matched}
