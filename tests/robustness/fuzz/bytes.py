"""Mutations of bytes: a few bits or bytes changed, cut, repeated, moved or put in."""

import numpy as np

INTERESTING = (
    b"\x00",
    b"\xff",
    b'"',
    b",",
    b"\n",
    b"\r",
    b";",
    b"\t",
    b"'",
    b"\x1b[31m",
    b"\xef\xbb\xbf",
    b"NaN",
    b"-",
    b"1e999",
    b"{",
    b"}",
)


def mutated(content: bytes, rng: np.random.Generator) -> tuple[str, bytes]:
    """The name of a mutation, and the bytes after it. They differ from those before."""
    for _ in range(20):
        name, changed = _once(bytearray(content), rng)
        if changed != content:
            return name, changed
    return "emptied", b""


def _once(data: bytearray, rng: np.random.Generator) -> tuple[str, bytes]:
    kind = int(rng.integers(9))
    at = int(rng.integers(max(1, len(data))))
    if kind == 0:
        data[at] ^= 1 << int(rng.integers(8))
        return f"one bit of byte {at}", bytes(data)
    if kind == 1:
        for place in rng.integers(0, len(data), int(rng.integers(1, 12))):
            data[place] = int(rng.integers(256))
        return "a few random bytes", bytes(data)
    if kind == 2:
        return f"cut at byte {at}", bytes(data[:at])
    if kind == 3:
        end = at + int(rng.integers(1, 40))
        return f"bytes {at} to {end} removed", bytes(data[:at] + data[end:])
    if kind == 4:
        end = at + int(rng.integers(1, 40))
        return f"bytes {at} to {end} twice", bytes(data[:end] + data[at:])
    if kind == 5:
        piece = INTERESTING[int(rng.integers(len(INTERESTING)))]
        return f"{piece!r} put in at byte {at}", bytes(data[:at] + piece + data[at:])
    if kind == 6:
        end = at + int(rng.integers(1, 64))
        data[at:end] = bytes(len(data[at:end]))
        return f"bytes {at} to {end} zeroed", bytes(data)
    if kind == 7:
        start, size = int(rng.integers(max(1, len(data)))), int(rng.integers(1, 32))
        piece = data[start : start + size]
        data[at : at + len(piece)] = piece
        return f"bytes from {start} written over those at {at}", bytes(data)
    return "bytes appended", bytes(data) + rng.integers(0, 256, int(rng.integers(1, 50)), dtype=np.uint8).tobytes()
