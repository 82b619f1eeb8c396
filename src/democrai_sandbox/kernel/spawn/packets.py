"""Packets on the link: data, descriptors and sender. Standard library only, for the server."""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import protocol
else:
    protocol = sys.modules["protocol"]  # loaded by the server, without the package

_CUT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)


class RequestPacket:
    """Packet with its descriptors; those that are not taken are closed."""

    __slots__ = ("_flags", "files", "lifeline", "packet", "sender")

    def __init__(self, native: Any, link: int) -> None:
        """Receive a packet; raise ``EOFError`` when the application has ended."""
        self.packet, self.lifeline, self.files, self.sender, self._flags = native.receive(link)
        # Some kernels report a sender of 0 at the end of the stream.
        if not self.packet and self.lifeline < 0 and not self.files and not self.sender:
            raise EOFError

    def body(self, application: int) -> bytes:
        """Return the body, after checking that the application sent it."""
        if self.sender != application:
            raise protocol.BadRequestError(f"process {self.sender} is not the application")
        if self._flags & _CUT:
            raise protocol.BadRequestError("the packet is too large, or no descriptor is free for its files")
        packet: bytes = self.packet
        if packet != protocol.IN_FILE or not self.files:
            return packet
        file = self.files.pop(0)
        try:
            return protocol.unsealed(file)
        finally:
            os.close(file)

    def close(self) -> None:
        """Close the descriptors that were not taken, except the lifeline."""
        for file in self.files:
            os.close(file)
        self.files.clear()
