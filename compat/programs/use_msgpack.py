"""msgpack: pack and unpack, extension types, and a stream from a file."""

from __future__ import annotations


def main(folder: str) -> object:
    import datetime
    import os

    import msgpack

    data = {"a": [1, 2.5, None, True], "b": b"bytes", "c": {"d": "text"}, "big": 2**63}
    packed = msgpack.packb(data)
    assert msgpack.unpackb(packed) == data

    def encode(value: object) -> object:
        if isinstance(value, complex):
            return msgpack.ExtType(42, f"{value.real},{value.imag}".encode())
        raise TypeError(value)

    def decode(code: int, content: bytes) -> object:
        assert code == 42
        return complex(*[float(part) for part in content.decode().split(",")])

    number = msgpack.unpackb(msgpack.packb(1 + 2j, default=encode), ext_hook=decode)
    assert number == 1 + 2j

    path = os.path.join(folder, "stream.bin")
    with open(path, "wb") as file:
        packer = msgpack.Packer()
        for index in range(5):
            file.write(packer.pack({"i": index}))
    with open(path, "rb") as file:
        stream = [item["i"] for item in msgpack.Unpacker(file)]
    moment = datetime.datetime(2024, 1, 2, tzinfo=datetime.timezone.utc)
    stamp = msgpack.unpackb(msgpack.packb(moment, datetime=True), timestamp=3)
    try:
        msgpack.unpackb(packed + b"x")
        error = ""
    except msgpack.ExtraData as problem:
        error = type(problem).__name__
    return {"packed": packed.hex(), "stream": stream, "stamp": stamp.isoformat(), "error": error}
