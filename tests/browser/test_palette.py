"""Pictures of the documentation in 256 colours."""

from __future__ import annotations

import struct
import zlib

import pytest

from tests.browser.palette import COLOURS, SIGNATURE, _chunk, _read, small


def png(rows: list[tuple[int, bytes]], width: int, kind: int = 2) -> bytes:
    """Returns a PNG with these filtered lines."""
    head = struct.pack(">IIBBBBB", width, len(rows), 8, kind, 0, 0, 0)
    data = zlib.compress(b"".join(bytes([kind]) + line for kind, line in rows))
    return SIGNATURE + _chunk(b"IHDR", head) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def colours(picture: bytes) -> tuple[list[tuple[int, ...]], list[bytes]]:
    """Returns the palette, and the lines as indexes into it."""
    parts, start = {}, len(SIGNATURE)
    while start < len(picture):
        [length] = struct.unpack_from(">I", picture, start)
        parts[picture[start + 4 : start + 8]] = picture[start + 8 : start + 8 + length]
        start += length + 12
    width, height = struct.unpack_from(">II", parts[b"IHDR"])
    palette = list(zip(*(parts[b"PLTE"][n::3] for n in range(3)), strict=True))
    data = zlib.decompress(parts[b"IDAT"])
    return palette, [data[n * (width + 1) + 1 : (n + 1) * (width + 1)] for n in range(height)]


def test_every_filter_is_read_back():
    red, grey = bytes((200, 10, 10)), bytes((90, 90, 90))
    lines = [
        (0, red + grey),
        (1, red + bytes((146, 80, 80))),  # grey less red
        (2, bytes(6)),
        (3, bytes((100, 5, 5)) + bytes((201, 40, 40))),  # less the mean of left and above: 100, 5; 145, 50
        (4, bytes(3) + bytes(3)),
    ]
    _, _, rows = _read(png(lines, 2))
    assert rows[:4] == [red + grey] * 4
    assert rows[4] == red + grey


def test_a_picture_of_few_colours_stays_as_it_is_and_transparency_goes():
    line = bytes((1, 2, 3, 255, 250, 250, 250, 255))
    palette, rows = colours(small(png([(0, line), (0, line)], 2, kind=6)))
    assert [[palette[place] for place in row] for row in rows] == [[(1, 2, 3), (250, 250, 250)]] * 2


def test_a_picture_of_many_colours_keeps_the_most_frequent_ones_and_no_pixel_is_far_off():
    line = b"".join(bytes((n % 256, n // 2 % 256, 7)) for n in range(600)) + bytes((9, 200, 99)) * 50
    palette, [row] = colours(small(png([(0, line)], 650)))
    assert len(palette) == COLOURS
    assert all(palette[place] == (9, 200, 99) for place in row[600:])
    for place, number in zip(row, range(600), strict=False):
        assert sum(abs(a - b) for a, b in zip(palette[place], (number % 256, number // 2 % 256, 7), strict=True)) < 20


def test_what_is_no_such_png_is_refused():
    with pytest.raises(ValueError, match="no PNG"):
        small(b"GIF89a")
    with pytest.raises(ValueError, match="kind 3"):
        small(png([(0, b"\0")], 1, kind=3))
