"""Certificate authority of the tests, with one certificate for all names and addresses."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

import trustme

NAMES = (
    *("localhost", "127.0.0.1", "127.0.0.2", "::1", "203.0.113.5", "203.0.113.6", "2001:db8::5"),
    *("example.com", "*.example.com", "*.example.net"),
)


@dataclass(frozen=True, slots=True)
class Certificates:
    """Client's bundle, and contexts for servers."""

    bundle: Path
    chain: Path

    def server_context(self, *protocols: str) -> ssl.SSLContext:
        """Return a server's TLS context with its ALPN protocols."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.chain)
        if protocols:
            context.set_alpn_protocols(list(protocols))
        return context


def make_certificates(directory: Path) -> Certificates:
    """Create a new authority; its key never leaves this process."""
    authority = trustme.CA()
    made = Certificates(directory / "ca.pem", directory / "server.pem")
    authority.cert_pem.write_to_path(made.bundle)
    authority.issue_cert(*NAMES).private_key_and_cert_chain_pem.write_to_path(made.chain)
    return made
