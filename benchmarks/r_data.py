"""Texts from the lazy-load database of an R package, such as Debian's `r-cran-janeaustenr`."""

import bz2
import lzma
import struct
import zlib
from collections.abc import Iterator
from typing import Any

__all__ = ["read_texts"]

_STRINGS = 16


def read_texts(path: str) -> list[str]:
    """Return every vector of strings in an `.rdb` file, each as lines joined by newlines.

    The format is described in "R Internals", sections 1.8 and 2.2.
    """
    with open(path, "rb") as file:
        content = file.read()
    return ["\n".join(lines) for lines in map(_strings, _entries(content)) if lines]


def _entries(content: bytes) -> Iterator[bytes]:
    """Decompress the entries, each of which begins with its length and a letter for its kind."""
    while content:
        # An entry without a letter is compressed by zlib, whose data do not begin with Z or 2.
        kind = content[4:5]
        decompressor: Any
        if kind == b"Z":
            filters = [{"id": lzma.FILTER_LZMA2, "preset": 6}]
            decompressor = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=filters)
        else:
            decompressor = bz2.BZ2Decompressor() if kind == b"2" else zlib.decompressobj()
        yield decompressor.decompress(content[5 if kind in (b"Z", b"2") else 4 :])
        content = decompressor.unused_data


def _strings(data: bytes) -> list[str]:
    """Parse a serialized vector of strings; return an empty list for any other object."""
    if not data.startswith(b"X\n"):
        return []
    (version,) = struct.unpack_from(">i", data, 2)
    place = 14
    if version == 3:
        place += 4 + struct.unpack_from(">i", data, place)[0]
    flags, count = struct.unpack_from(">ii", data, place)
    if flags & 0xFF != _STRINGS:
        return []
    place += 8
    lines = []
    for _ in range(count):
        (length,) = struct.unpack_from(">i", data, place + 4)
        place += 8
        lines.append(data[place : place + max(length, 0)].decode())
        place += max(length, 0)
    return lines
