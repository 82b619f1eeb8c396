"""zstandard: one-shot and streaming compression, a dictionary, and files."""

from __future__ import annotations


def main(folder: str) -> object:
    import io
    import os

    import zstandard as zstd

    data = b"hello world, " * 5000
    packed = zstd.ZstdCompressor(level=10, write_checksum=True).compress(data)
    assert zstd.ZstdDecompressor().decompress(packed) == data

    path = os.path.join(folder, "data.zst")
    with zstd.open(path, "wt", encoding="utf-8") as file:
        for number in range(1000):
            file.write(f"line {number}\n")
    with zstd.open(path, "rt", encoding="utf-8") as file:
        lines = sum(1 for _ in file)

    source = io.BytesIO(data)
    copy = os.path.join(folder, "copy.zst")
    with open(copy, "wb") as file:
        read, _ = zstd.ZstdCompressor().copy_stream(source, file)
    with open(copy, "rb") as file, zstd.ZstdDecompressor().stream_reader(file) as reader:
        streamed = len(reader.read())

    samples = [f"user {n} has name name{n} and mail m{n}@shop.example".encode() for n in range(2000)]
    dictionary = zstd.train_dictionary(2048, samples)
    small = zstd.ZstdCompressor(dict_data=dictionary).compress(samples[7])
    assert zstd.ZstdDecompressor(dict_data=dictionary).decompress(small) == samples[7]
    threaded = zstd.ZstdCompressor(level=3, threads=2).compress(data)
    chunker = zstd.ZstdCompressor().chunker(chunk_size=100)
    chunks = [*chunker.compress(data), *chunker.finish()]
    try:
        zstd.ZstdDecompressor().decompress(b"not compressed")
        error = ""
    except zstd.ZstdError as problem:
        error = type(problem).__name__
    frame = zstd.get_frame_parameters(packed)
    return {
        "smaller": len(packed) < len(data) // 50,
        "lines": lines,
        "streamed": [read, streamed],
        "dictionary": len(small) < len(samples[7]),
        "threaded": zstd.decompress(threaded) == data,
        "chunks": len(zstd.ZstdDecompressor().decompressobj().decompress(b"".join(chunks))),
        "frame": [frame.content_size, frame.has_checksum],
        "error": error,
    }
