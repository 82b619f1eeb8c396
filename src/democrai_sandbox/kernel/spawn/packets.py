"""What comes over the link: a packet, descriptors, and who sent it. Standard library only: for the server alone."""

from __future__ import annotations

import os
import socket
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import wire
else:
    wire = sys.modules["wire"]  # loaded by the server, without the package

_CUT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)


class Request:
    """A packet from the link, with all that came along; whatever is not taken is closed."""

    __slots__ = ("_flags", "files", "lifeline", "packet", "sender")

    def __init__(self, native: Any, link: int) -> None:
        """Receive one; raise ``EOFError`` when the application is gone."""
        self.packet, self.lifeline, self.files, self.sender, self._flags = native.receive(link)
        # Some kernels name a sender also at the end, which is nobody then.
        if not self.packet and self.lifeline < 0 and not self.files and not self.sender:
            raise EOFError

    def body(self, application: int) -> bytes:
        """Return what is asked for, if it is the application that asks."""
        if self.sender != application:
            raise wire.BadRequestError(f"process {self.sender} is not the application")
        if self._flags & _CUT:
            raise wire.BadRequestError("the packet is too large, or no descriptor is free for what came with it")
        packet: bytes = self.packet
        if packet != wire.IN_FILE or not self.files:
            return packet
        file = self.files.pop(0)
        try:
            return wire.unsealed(file)
        finally:
            os.close(file)

    def close(self) -> None:
        """Close what nobody took, but for the lifeline."""
        for file in self.files:
            os.close(file)
        self.files.clear()
