"""External media for subjects: fetched, streamed and proxied under a policy for exactly one URL.

Nothing is imported here, because extension code needs only the errors, also in a process without the rest.
"""
