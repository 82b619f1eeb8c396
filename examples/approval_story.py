"""Tells of one approval: a subject is stopped, somebody decides, it goes on, and the audit knows: ``make tour``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import standin
import subject

from democrai_sandbox import access_changed, configure_guard, process_guard_context
from democrai_sandbox.access import Access, AccessSettings, Administration, Caller
from democrai_sandbox.access.audit import verify_store
from democrai_sandbox.errors import NetworkDenied
from democrai_sandbox.runtime.access_environment import GuardSurroundings, serving

ADA = Caller(user_id="ada", role="super")


def main() -> int:
    """Put the service together on SQLite, and tell the story."""
    server = standin.start()
    with tempfile.TemporaryDirectory() as folder:
        settings = AccessSettings(database=f"sqlite:///{folder}/access.db", key_file=str(Path(folder, "keys")))
        access = Access(settings, GuardSurroundings())
        # What no rule allows is put to the service; its own files are no subject's, though the temp directory is.
        configure_guard(decider=access.service, protected_paths=[folder])
        access.node.on_change(access_changed)
        with access:
            tell(access, f"{server}/weather")
    return 0


def tell(access: Access, page: str) -> None:
    """Have the same page fetched before and after each thing that happens."""
    print("module reports has declared nothing, and wants", page, "\n")
    fetch(page, session="monday")
    with serving(ADA):
        approve_what_waits(access.administration)
    fetch(page, session="monday")
    fetch(page, session="tuesday")
    print("ended    session monday, and with it", access.administration.end_session("monday"), "approval")
    fetch(page, session="monday")
    print("\nThe audit:")
    for record in access.store.audit_rows():
        print(f"  {record.sequence}  {record.action:<22}{record.actor}")
    report = verify_store(access.store)
    print(f"{report.count} records, the chain is {'whole' if report.ok else 'broken: ' + report.what}.")


def fetch(page: str, session: str) -> None:
    """Fetch the page as the subject does, for a user in a session, and print what it comes to."""
    guard = process_guard_context(subject="reports", user_id="uma", session_key=session)
    try:
        print(f"allowed  in session {session}:", guard.run(subject.fetch, page).decode())
    except NetworkDenied as denial:
        print(f"stopped  in session {session}:", denial)
        print("        ", denial.hint)


def approve_what_waits(administration: Administration) -> None:
    """Approve every pending request until its session ends."""
    for request in administration.pending_requests():
        wanted, origin = request.access, request.origin
        print(f"pending  {wanted.subject} {wanted.operation} {wanted.target}")
        print(f"         for {origin.user_id} in session {origin.session_key}; asked so far: {request.count}")
        administration.approve_for_session(request.id, reason="the forecast belongs into the report")
        print("approved for that session, by", ADA.user_id)


if __name__ == "__main__":
    sys.exit(main())
