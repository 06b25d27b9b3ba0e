"""A TCP proxy between clients and Redis that can be told to misbehave: `python -m tests.campaign.proxy PORT SOCKET`.

Lines on its input: `pass`; `reset P`: with probability P a reply is cut in the middle and the connection reset; `swallow P`: with
probability P a reply never comes; `delay S`: every reply comes S seconds late. It ends when its input is closed.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import sys
from contextlib import suppress

CHUNK = 1 << 16


class Proxy:
    """Passes bytes both ways, under the present rule."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.rule = "pass"
        self.amount = 0.0
        self.random = random.Random(1)
        self.open: set[asyncio.Task[None]] = set()

    def obey(self, line: str) -> None:
        """A line of the input."""
        words = line.split()
        if words:
            self.rule, self.amount = words[0], float(words[1]) if len(words) > 1 else 0.0

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client."""
        try:
            back_reader, back_writer = await asyncio.open_unix_connection(self.server)
        except OSError:
            _reset(writer)
            return
        there = asyncio.ensure_future(self._requests(reader, back_writer))
        try:
            await self._replies(back_reader, writer)
        finally:
            there.cancel()
            for end in (writer, back_writer):
                with suppress(Exception):
                    end.close()

    async def _requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await reader.read(CHUNK):
                writer.write(chunk)
                await writer.drain()
            writer.close()

    async def _replies(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while chunk := await reader.read(CHUNK):
                if self.rule == "delay":
                    await asyncio.sleep(self.amount)
                elif self.rule == "swallow" and self.random.random() < self.amount:
                    continue
                elif self.rule == "reset" and self.random.random() < self.amount:
                    writer.write(chunk[: len(chunk) // 2])
                    with suppress(OSError):
                        await writer.drain()
                    _reset(writer)
                    return
                writer.write(chunk)
                await writer.drain()


def _reset(writer: asyncio.StreamWriter) -> None:
    line = writer.get_extra_info("socket")
    if line is not None:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def main(port: str, server: str) -> None:
    """Serves until the input is closed."""
    proxy = Proxy(server)
    ears = await asyncio.start_server(proxy.meet, "127.0.0.1", int(port))
    loop = asyncio.get_running_loop()
    async with ears:
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            proxy.obey(line)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
