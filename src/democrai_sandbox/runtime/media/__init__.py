"""External media for subjects: fetched, streamed and proxied in a policy for exactly the URL at hand.

``service`` has the service of a host, ``doors`` what guarded code reaches of it, ``values`` and ``errors`` what comes
out. Nothing is imported here: extension code needs the errors alone, also in a process without the rest.
"""
