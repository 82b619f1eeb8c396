"""websockets: a client and a server protocol joined in memory."""

from __future__ import annotations


def main(folder: str) -> object:
    import os

    from websockets.client import ClientProtocol
    from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory, ServerPerMessageDeflateFactory
    from websockets.frames import Opcode
    from websockets.http11 import Request, Response
    from websockets.server import ServerProtocol
    from websockets.uri import parse_uri

    client = ClientProtocol(
        parse_uri("ws://chat.example/room"), subprotocols=["chat"], extensions=[ClientPerMessageDeflateFactory()]
    )
    server = ServerProtocol(subprotocols=["chat"], extensions=[ServerPerMessageDeflateFactory()])

    def move(source: object, target: object) -> list:
        for data in source.data_to_send():
            if data:
                target.receive_data(data)
        return target.events_received()

    client.send_request(client.connect())
    request = move(client, server)[0]
    assert isinstance(request, Request)
    server.send_response(server.accept(request))
    response = move(server, client)[0]
    assert isinstance(response, Response) and response.status_code == 101

    client.send_text("hello \u00e9".encode())
    client.send_binary(b"\x00\x01" * 500)
    client.send_ping(b"p")
    frames = move(client, server)
    pong = move(server, client)
    server.send_text(b"par", fin=False)
    server.send_continuation(b"ts", fin=True)
    parts = move(server, client)
    with open(os.path.join(folder, "messages.bin"), "wb") as file:
        file.write(b"".join(frame.data for frame in frames))
    client.send_close(1000, "bye")
    move(client, server)
    move(server, client)
    server.receive_eof()
    client.receive_eof()
    return {
        "path": request.path,
        "subprotocol": client.subprotocol,
        "extensions": [type(e).__name__ for e in client.extensions],
        "frames": [[Opcode(f.opcode).name, len(f.data)] for f in frames],
        "pong": [Opcode(f.opcode).name for f in pong],
        "parts": b"".join(f.data for f in parts).decode(),
        "close": [server.close_code, client.close_reason],
    }
