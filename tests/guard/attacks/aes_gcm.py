"""AES-GCM in plain Python, as small as it gets: what a subject would bring along to encrypt records by itself."""

from __future__ import annotations


def _tables() -> list[int]:
    box, p, q = [0] * 256, 1, 1
    while True:
        p ^= (p << 1) ^ (0x11B if p & 0x80 else 0)
        p &= 0xFF
        for shift in (1, 2, 4):
            q ^= q << shift
        q &= 0xFF
        q ^= 0x09 if q & 0x80 else 0
        box[p] = q ^ _turn(q, 1) ^ _turn(q, 2) ^ _turn(q, 3) ^ _turn(q, 4) ^ 0x63
        if p == 1:
            break
    box[0] = 0x63
    return box


def _turn(byte: int, count: int) -> int:
    return ((byte << count) | (byte >> (8 - count))) & 0xFF


BOX = _tables()


def _double(byte: int) -> int:
    return ((byte << 1) ^ (0x1B if byte & 0x80 else 0)) & 0xFF


def _expand(key: bytes) -> list[list[int]]:
    words = [list(key[i : i + 4]) for i in range(0, len(key), 4)]
    step, factor = len(words), 1
    while len(words) < 4 * (step + 7):
        word = list(words[-1])
        if len(words) % step == 0:
            word = [BOX[byte] for byte in word[1:] + word[:1]]
            word[0] ^= factor
            factor = _double(factor)
        elif step > 6 and len(words) % step == 4:
            word = [BOX[byte] for byte in word]
        words.append([a ^ b for a, b in zip(words[-step], word, strict=True)])
    return [sum(words[i : i + 4], []) for i in range(0, len(words), 4)]


def _block(rounds: list[list[int]], data: bytes) -> bytes:
    state = [a ^ b for a, b in zip(data, rounds[0], strict=True)]
    for number, key in enumerate(rounds[1:], 1):
        state = [BOX[state[(i + 4 * (i % 4)) % 16]] for i in range(16)]
        if number < len(rounds) - 1:
            mixed = []
            for column in range(0, 16, 4):
                a = state[column : column + 4]
                every = a[0] ^ a[1] ^ a[2] ^ a[3]
                mixed += [a[i] ^ every ^ _double(a[i] ^ a[(i + 1) % 4]) for i in range(4)]
            state = mixed
        state = [a ^ b for a, b in zip(state, key, strict=True)]
    return bytes(state)


def _multiply(x: int, y: int) -> int:
    product = 0
    for bit in range(127, -1, -1):
        if x >> bit & 1:
            product ^= y
        y = (y >> 1) ^ (0xE1 << 120 if y & 1 else 0)
    return product


def encrypt(key: bytes, nonce: bytes, data: bytes, known: bytes) -> bytes:
    """Ciphertext and tag."""
    rounds = _expand(key)
    mask = int.from_bytes(_block(rounds, bytes(16)))
    stream = b"".join(_block(rounds, nonce + (2 + i).to_bytes(4, "big")) for i in range(-(-len(data) // 16)))
    text = bytes(a ^ b for a, b in zip(data, stream, strict=False))
    padded = known + bytes(-len(known) % 16) + text + bytes(-len(text) % 16)
    padded += (len(known) * 8).to_bytes(8, "big") + (len(text) * 8).to_bytes(8, "big")
    digest = 0
    for i in range(0, len(padded), 16):
        digest = _multiply(digest ^ int.from_bytes(padded[i : i + 16]), mask)
    tag = digest ^ int.from_bytes(_block(rounds, nonce + b"\0\0\0\1"))
    return text + tag.to_bytes(16, "big")


def record(secret: bytes, hash_name: str, number: int, data: bytes) -> bytes:
    """A TLS 1.3 record with application data, under a traffic secret."""
    import hashlib
    import hmac

    def derive(label: bytes, size: int) -> bytes:
        full = b"tls13 " + label
        info = size.to_bytes(2, "big") + bytes([len(full)]) + full + b"\0"
        return hmac.new(secret, info + b"\1", getattr(hashlib, hash_name)).digest()[:size]

    key, start = derive(b"key", 32 if hash_name == "sha384" else 16), derive(b"iv", 12)
    nonce = (int.from_bytes(start) ^ number).to_bytes(12, "big")
    inner = data + b"\x17"
    head = b"\x17\x03\x03" + (len(inner) + 16).to_bytes(2, "big")
    return head + encrypt(key, nonce, inner, head)
