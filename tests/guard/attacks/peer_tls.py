"""TLS of the attacks' servers. The key protects nothing: it is for servers on loopback that live for a second."""

from __future__ import annotations

import os
import ssl
import tempfile

KEY = """-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgSAFhYB9fZ0vWvlc/
8fGhaMgrauMh16CErPZ9j0/SW5ehRANCAASpW+WCSTb3YCjQG8qAUC0p2D7PHH6l
8YPufMNUyDDc5GV9RKNWHVzZLAO07ApihMMSqBWj5Jn7+WQdwEeZRIFz
-----END PRIVATE KEY-----
"""
CERTIFICATE = """-----BEGIN CERTIFICATE-----
MIIBxzCCAW6gAwIBAgIUWPhalq6aA7xY+5SrnXzOHhRJ3B0wCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTExNTA0Mjg1NFoYDzIxMjYxMDIy
MDQyODU0WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAASpW+WCSTb3YCjQG8qAUC0p2D7PHH6l8YPufMNUyDDc5GV9RKNWHVzZ
LAO07ApihMMSqBWj5Jn7+WQdwEeZRIFzo4GbMIGYMB0GA1UdDgQWBBQuopRr4F8c
25wxrzMrVADUw9NGbjAfBgNVHSMEGDAWgBQuopRr4F8c25wxrzMrVADUw9NGbjAP
BgNVHRMBAf8EBTADAQH/MEUGA1UdEQQ+MDyCCWxvY2FsaG9zdIIKZnJvbnQudGVz
dIILaGlkZGVuLnRlc3SHBH8AAAGHEAAAAAAAAAAAAAAAAAAAAAEwCgYIKoZIzj0E
AwIDRwAwRAIgO0FNW9YK3P4Sz314B1Jt7l/R5vkxcJcUwvJkOIb3lrQCIBA/pcb6
iDGxl9eBusod8f210cHPbB1zqyhKX2JHy6yW
-----END CERTIFICATE-----
"""


def server_context() -> ssl.SSLContext:
    """The context of the server; it remembers the name that a client gave in the handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    number, path = tempfile.mkstemp()
    os.write(number, (KEY + CERTIFICATE).encode())
    os.close(number)
    context.load_cert_chain(path)
    os.unlink(path)

    def note(connection: object, name: str | None, _: object) -> None:
        connection.peer.name = name

    context.sni_callback = note
    return context


def client_context() -> ssl.SSLContext:
    """A context of a client that trusts this server."""
    return ssl.create_default_context(cadata=CERTIFICATE)
