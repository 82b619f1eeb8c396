"""External media for subjects: fetched, streamed and proxied under a policy for exactly one URL.

``service`` has the service of the host, ``doors`` the functions for guarded code, ``values`` and ``errors`` their
results. Nothing is imported here, because extension code needs only the errors, also in a process without the rest.
"""
