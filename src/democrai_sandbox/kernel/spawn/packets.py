"""What comes over the link: a packet, descriptors, and who sent it. Standard library only: for the server alone."""

from __future__ import annotations

import _socket  # one of its sockets costs half of one of the module socket, and each child has one
import array
import os
import socket
import stat
import struct
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import wire
else:
    wire = sys.modules["wire"]  # loaded by the server, without the package

_CREDENTIALS = struct.Struct("=iII")
_ROOM = socket.CMSG_SPACE(_CREDENTIALS.size) + socket.CMSG_SPACE(253 * array.array("i").itemsize)
# Plain numbers: every operation on the enumerations of the module is a call, and these are used for each request.
_RECEIVING = int(socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
_UNIX, _PACKETS = int(socket.AF_UNIX), int(socket.SOCK_SEQPACKET)
_CUT = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
RIGHTS = (int(socket.SOL_SOCKET), int(socket.SCM_RIGHTS))
_SENDER = (int(socket.SOL_SOCKET), int(socket.SCM_CREDENTIALS))


class Request:
    """A packet from the link, with all that came along; whatever is not taken is closed."""

    def __init__(self, link: socket.socket) -> None:
        """Receive one; raise ``EOFError`` when the application is gone."""
        self.packet, rest, self._flags, _ = link.recvmsg(wire.LARGEST_INLINE + 1, _ROOM, _RECEIVING)
        self.files: list[int] = []
        self.sender = 0
        for level, kind, data in rest:
            if (level, kind) == RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
                self.files += numbers
            elif (level, kind) == _SENDER:
                self.sender = _CREDENTIALS.unpack(data)[0]
        # Some kernels name a sender also at the end, which is nobody then.
        if not self.packet and not self.files and not self.sender:
            raise EOFError

    def take_lifeline(self) -> _socket.socket | None:
        """Return the socket to answer on, if there is one."""
        if not self.files or not stat.S_ISSOCK(os.fstat(self.files[0]).st_mode):
            return None
        return _socket.socket(_UNIX, _PACKETS, 0, self.files.pop(0))

    def body(self, application: int) -> bytes:
        """Return what is asked for, if it is the application that asks."""
        if self.sender != application:
            raise wire.BadRequestError(f"process {self.sender} is not the application")
        if self._flags & _CUT:
            raise wire.BadRequestError("the packet is too large, or no descriptor is free for what came with it")
        if self.packet != wire.IN_FILE or not self.files:
            return self.packet
        file = self.files.pop(0)
        try:
            return wire.unsealed(file)
        finally:
            os.close(file)

    def close(self) -> None:
        """Close what nobody took."""
        for file in self.files:
            os.close(file)
        self.files.clear()
