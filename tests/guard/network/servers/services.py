"""Mail server and file server, as small as the standard library's clients allow."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

    from tests.guard.network.servers.journal import Journal

PATIENCE = 10


class Service:
    """One conversation, line by line."""

    greeting = ""

    def __init__(self, name: str, journal: Journal) -> None:
        self._name = name
        self._journal = journal

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve until the client leaves or times out."""
        self._journal.note(self._name, "connect")
        try:
            async with asyncio.timeout(PATIENCE):
                self._say(writer, self.greeting)
                while line := (await reader.readline()).decode().strip():
                    self._journal.note(self._name, "line", text=line)
                    if not await self._answer(line, reader, writer):
                        break
        except (TimeoutError, ConnectionError):
            pass
        finally:
            writer.close()

    @staticmethod
    def _say(writer: asyncio.StreamWriter, text: str) -> None:
        writer.write(text.encode() + b"\r\n")

    async def _answer(self, line: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        raise NotImplementedError


class Mail(Service):
    """SMTP server that accepts every mail, in plain text or after STARTTLS."""

    greeting = "220 mail"

    def __init__(self, tls: ssl.SSLContext, name: str, journal: Journal) -> None:
        super().__init__(name, journal)
        self._tls = tls

    async def _answer(self, line: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        word = line.split(maxsplit=1)[0].upper()
        if word == "QUIT":
            self._say(writer, "221 bye")
            return False
        if word == "EHLO":
            self._say(writer, "250-mail\r\n250 STARTTLS")
            return True
        if word == "STARTTLS":
            self._say(writer, "220 go on")
            await writer.start_tls(self._tls)
            return True
        if word == "DATA":
            self._say(writer, "354 go on")
            letter = await reader.readuntil(b"\r\n.\r\n")
            self._journal.note(self._name, "letter", text=letter.decode())
        self._say(writer, "250 fine")
        return True


class Files(Service):
    """FTP server with one file, in passive mode."""

    greeting = "220 files"
    content = b"the file"

    def __init__(self, name: str, journal: Journal) -> None:
        super().__init__(name, journal)
        self._data: asyncio.Server | None = None
        self._peer: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()

    async def _answer(self, line: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        word = line.split(maxsplit=1)[0].upper()
        if word in {"EPSV", "PASV"}:
            await self._offer(word, writer)
        elif word in {"RETR", "STOR"}:
            await self._transfer(word, writer)
        else:
            answers = {"USER": "331 and the password?", "PASS": "230 welcome", "QUIT": "221 bye"}
            self._say(writer, answers.get(word, "200 fine"))
        return word != "QUIT"

    async def _offer(self, word: str, writer: asyncio.StreamWriter) -> None:
        async def arrived(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._peer.put((reader, writer))

        self._data = await asyncio.start_server(arrived, "127.0.0.1", 0)
        port = self._data.sockets[0].getsockname()[1]
        passive = f"227 here (127,0,0,1,{port >> 8},{port & 255})"
        self._say(writer, f"229 here (|||{port}|)" if word == "EPSV" else passive)

    async def _transfer(self, word: str, writer: asyncio.StreamWriter) -> None:
        self._say(writer, "150 now")
        reader, out = await self._peer.get()
        if word == "RETR":
            out.write(self.content)
        else:
            self._journal.note(self._name, "stored", data=(await reader.read()).decode())
        out.close()
        self._data.close()
        self._say(writer, "226 done")
