"""The connections between the nodes of a Cluster, and between them and their clients, which can be cut: a network that is split in
two.

A node announces two ports of these proxies instead of its ports. Each caller is identified by the address that it calls from: each
node has one (`bind-source-addr`), and so has a process that passes `call_from`; all others call from 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Collection
from contextlib import suppress
from typing import Any

CHUNK = 1 << 16
FEW = "127.0.0.9"  # from where the clients call that are on the side of the few


class Wires:
    """Forwards data in a thread. Between the two sides of a split it forwards nothing and returns no error: senders wait until they
    give up. When the split ends, connections across it are reset.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread()
        self._few: frozenset[str] = frozenset()
        self._tasks: dict[asyncio.Task[None], tuple[str, str]] = {}  # of lines, and between whom they are
        self._servers: list[asyncio.Server] = []
        self._leads: list[tuple[socket.socket, str, int]] = []

    def lead(self, to: str, port: int) -> int:
        """A port of 127.0.0.1 that leads to this one, of a node that calls from the address `to`. Before it begins."""
        heard = socket.create_server(("127.0.0.1", 0))
        self._leads.append((heard, to, port))
        found: int = heard.getsockname()[1]
        return found

    def begin(self) -> None:
        """Passes on from now on."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._ask(self._listen())

    def end(self) -> None:
        """Cuts all, for good."""
        if self._loop is not None:
            self._ask(self._close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = None
        for heard, _, _ in self._leads:
            heard.close()

    def split(self, few: Collection[str]) -> None:
        """From now on those who call from these addresses, and whom they lead to, are cut off from all others."""
        self._few = frozenset(few)

    def heal(self) -> None:
        """The split is over."""
        self._ask(self._reset())

    def _ask(self, work: Any) -> None:
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def _cut(self, between: tuple[str, str]) -> bool:
        one, other = between
        return (one in self._few) is not (other in self._few)

    async def _listen(self) -> None:
        for heard, to, port in self._leads:

            def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: str = to, port: int = port) -> None:
                between = (writer.get_extra_info("peername")[0], to)
                task = asyncio.get_running_loop().create_task(self._line(reader, writer, port, between))
                self._tasks[task] = between
                task.add_done_callback(self._tasks.pop)

            self._servers.append(await asyncio.start_server(met, sock=heard))

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        await self._reset(all=True)
        await asyncio.sleep(0.01)  # until what was aborted is closed

    async def _reset(self, *, all: bool = False) -> None:
        crossing = [task for task, between in self._tasks.items() if all or self._cut(between)]
        self._few = frozenset()
        for task in crossing:
            task.cancel()
        await asyncio.gather(*crossing, return_exceptions=True)

    async def _line(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, between: tuple[str, str]) -> None:
        ends = [writer]
        try:
            while self._cut(between):
                await asyncio.sleep(1)  # until it is reset
            there, back = await asyncio.open_connection("127.0.0.1", port)
            ends.append(back)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass_on(reader, back, between))
                both.create_task(self._pass_on(there, writer, between))
        except* OSError:
            pass
        finally:
            for end in ends:
                end.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, between: tuple[str, str]) -> None:
        while chunk := await reader.read(CHUNK):
            while self._cut(between):
                await asyncio.sleep(1)
            writer.write(chunk)
            await writer.drain()
        raise ConnectionResetError  # so that the other way ends, too


def call_from(address: str) -> None:
    """All connections of this process to 127.0.0.1 come from that address from now on."""
    real = socket.socket.connect

    def connect(line: socket.socket, where: Any) -> None:
        if line.family == socket.AF_INET and where[0] == "127.0.0.1":
            with suppress(OSError):  # it is bound already
                line.bind((address, 0))
        real(line, where)

    socket.socket.connect = connect  # type: ignore[method-assign, assignment]  # what a process does in another network has no other place
