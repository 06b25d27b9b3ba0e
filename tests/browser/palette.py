"""Small PNGs: a picture of a browser's page in 256 colours, by what comes with Python alone."""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from typing import Final

SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
COLOURS: Final = 256
Colour = tuple[int, int, int]


def small(png: bytes) -> bytes:
    """The same picture with the colours that it has most often; each other one becomes the nearest of these. `png`: 8 bits a colour,
    RGB or RGBA without anything that one sees through, not interlaced, as browsers write them.

    Raises:
        ValueError: it is another kind of PNG.
    """
    width, height, rows = _read(png)
    pixels = [list(zip(row[0::3], row[1::3], row[2::3], strict=True)) for row in rows]
    counts = Counter(pixel for row in pixels for pixel in row)
    palette = _palette(counts)
    place = {colour: number for number, colour in enumerate(palette)}
    for colour in counts:
        if colour not in place:
            place[colour] = min(range(len(palette)), key=lambda number: _apart(colour, palette[number]))
    lines = b"".join(b"\0" + bytes(map(place.__getitem__, row)) for row in pixels)
    head = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = ((b"IHDR", head), (b"PLTE", bytes(part for colour in palette for part in colour)), (b"IDAT", zlib.compress(lines, 9)))
    return SIGNATURE + b"".join(_chunk(kind, data) for kind, data in (*parts, (b"IEND", b"")))


def _palette(counts: Counter[Colour]) -> list[Colour]:
    """Returns the most frequent colours. A colour that is close to a chosen one is taken only if no other waits."""
    palette: list[Colour] = []
    for nearest in (48, 12, 0):
        for colour, _ in counts.most_common():
            if len(palette) == COLOURS:
                return palette
            if all(_apart(colour, taken) > nearest for taken in palette):
                palette.append(colour)
    return palette


def _apart(one: Colour, other: Colour) -> int:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    start = len(SIGNATURE)
    while start < len(png):
        [length] = struct.unpack_from(">I", png, start)
        yield png[start + 4 : start + 8], png[start + 8 : start + 8 + length]
        start += length + 12


def _read(png: bytes) -> tuple[int, int, list[bytes]]:
    """Returns width, height, and each row as RGB."""
    if not png.startswith(SIGNATURE):
        raise ValueError("That is no PNG.")
    chunks = list(_chunks(png))
    width, height, depth, kind, _, _, interlaced = struct.unpack(">IIBBBBB", dict(chunks)[b"IHDR"])
    if depth != 8 or kind not in (2, 6) or interlaced:
        raise ValueError(f"{depth} bits, kind {kind}, interlaced {interlaced}: only 8 bits of RGB or RGBA line by line are read.")
    step = 3 if kind == 2 else 4
    data = zlib.decompress(b"".join(part for name, part in chunks if name == b"IDAT"))
    rows, above, size = [], bytearray(width * step), width * step
    for start in range(0, len(data), size + 1):
        above = _unfiltered(data[start], bytearray(data[start + 1 : start + 1 + size]), above, step)
        rows.append(bytes(above) if step == 3 else bytes(value for place, value in enumerate(above) if place % 4 < 3))
    return width, height, rows


def _unfiltered(kind: int, line: bytearray, above: bytearray, step: int) -> bytearray:
    """Returns a line without the effect of its filter; see "Filtering" in the specification of PNG."""
    for place, value in enumerate(line):
        left, up = line[place - step] if place >= step else 0, above[place]
        corner = above[place - step] if place >= step else 0
        match kind:
            case 0:
                break
            case 1:
                guess = left
            case 2:
                guess = up
            case 3:
                guess = (left + up) // 2
            case _:
                estimate = left + up - corner
                guess = min((left, up, corner), key=lambda each: abs(estimate - each))
        line[place] = (value + guess) & 255
    return line
