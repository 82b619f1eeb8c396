"""Name server with scripted answers that records every question."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

if TYPE_CHECKING:
    from tests.guard.network.servers.journal import Journal

Zone = dict[str, dict[str, Any]]
"""Zone by name and type: a list of records, or a list of such lists, of which each question gets the next one."""


class NameServer(asyncio.DatagramProtocol):
    """Name server protocol. The time to live is 0 unless the zone has another."""

    def __init__(self, name: str, journal: Journal) -> None:
        self._name = name
        self._journal = journal
        self._zone: Zone = {}
        self._asked: Counter[tuple[str, str]] = Counter()
        self.transport: Any = None

    def script(self, zone: Zone) -> None:
        """Use this zone from now on, starting with the first answers."""
        self._zone = {name.lower(): records for name, records in zone.items()}
        self._asked.clear()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self.transport = transport

    def datagram_received(self, data: bytes, address: Any) -> None:
        """Answer one question; ignore anything else."""
        try:
            query = dns.message.from_wire(data)
        except dns.exception.DNSException:
            self._journal.note(self._name, "bytes", data=data.decode("latin-1"))
            return
        question = query.question[0]
        name, kind = question.name.to_text(omit_final_dot=True).lower(), dns.rdatatype.to_text(question.rdtype)
        self._journal.note(self._name, "query", name=name, type=kind)
        response = dns.message.make_response(query)
        response.flags |= dns.flags.AA | dns.flags.RA
        self._fill(response, name, kind)
        self.transport.sendto(response.to_wire(), address)

    def _fill(self, response: dns.message.Message, name: str, kind: str) -> None:
        records = self._zone.get(name)
        if records is None:
            response.set_rcode(dns.rcode.NXDOMAIN)
            return
        if alias := records.get("CNAME"):
            response.answer.append(dns.rrset.from_text(f"{name}.", 0, "IN", "CNAME", f"{alias}."))
            self._fill(response, alias, kind)
            return
        if found := self._next(name, kind, records.get(kind, [])):
            response.answer.append(dns.rrset.from_text(f"{name}.", records.get("ttl", 0), "IN", kind, *found))

    def _next(self, name: str, kind: str, answers: list[Any]) -> list[str]:
        if not answers or isinstance(answers[0], str):
            return answers
        turn = self._asked[name, kind]
        self._asked[name, kind] += 1
        return answers[min(turn, len(answers) - 1)]
