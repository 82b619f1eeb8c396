"""tiktoken: an encoding built from ranks in memory and from a file."""

from __future__ import annotations


def main(folder: str) -> object:
    import base64
    import os

    os.environ["TIKTOKEN_CACHE_DIR"] = os.path.join(folder, "cache")

    import tiktoken
    from tiktoken.load import load_tiktoken_bpe

    ranks = {bytes([value]): value for value in range(256)}
    for merged in (b"he", b"ll", b"hell", b"hello", b" w", b"or", b" wor", b"ld", b" world"):
        ranks[merged] = len(ranks)
    path = os.path.join(folder, "small.tiktoken")
    with open(path, "wb") as file:
        for token, rank in ranks.items():
            file.write(base64.b64encode(token) + b" " + str(rank).encode() + b"\n")
    assert load_tiktoken_bpe(path) == ranks

    encoding = tiktoken.Encoding(
        name="small",
        pat_str=r"'s|'t| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+",
        mergeable_ranks=ranks,
        special_tokens={"<|end|>": 1000},
    )
    tokens = encoding.encode("hello world, hello 42 caf\u00e9")
    assert encoding.decode(tokens) == "hello world, hello 42 caf\u00e9"
    try:
        encoding.encode("x<|end|>")
        special = "allowed"
    except ValueError:
        special = "refused"
    return {
        "tokens": tokens,
        "special": [special, encoding.encode("x<|end|>", allowed_special="all")],
        "pieces": [piece.decode("latin-1") for piece in encoding.decode_tokens_bytes(tokens[:2])],
        "batch": encoding.encode_batch(["hello", " world"], num_threads=2),
        "offsets": encoding.decode_with_offsets(tokens[:2])[1],
        "size": encoding.n_vocab,
        "names": len(tiktoken.list_encoding_names()) > 2,
    }
