"""Relay of connections from one network namespace to another.

`nsenter --net=… python -m tests.faults.soak.relay OUTSIDE PORT…` listens on these ports of
127.0.0.1, and connects to the same ports from the namespace OUTSIDE. While it is stopped, nothing
arrives; afterwards everything does, as late as on a network that was cut.
"""

import asyncio
import ctypes
import os
import socket
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Final

_NETWORK: Final = 0x40000000  # CLONE_NEWNET
_HOST: Final = "127.0.0.1"


async def relay(listening: Sequence[socket.socket]) -> None:
    for each in listening:
        port = each.getsockname()[1]
        await asyncio.start_server(lambda r, w, port=port: _join(r, w, port), sock=each)  # type: ignore[misc]
    sys.stdout.write("\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
    with suppress(OSError), closing(writer):
        far_reader, far_writer = await asyncio.open_connection(_HOST, port)
        with closing(far_writer):
            copies = [
                asyncio.ensure_future(_copy(reader, far_writer)),
                asyncio.ensure_future(_copy(far_reader, writer)),
            ]
            await asyncio.wait(copies, return_when=asyncio.FIRST_COMPLETED)
            for each in copies:
                each.cancel()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


def main(outside: str, *ports: str) -> None:
    listening = [socket.create_server((_HOST, int(port))) for port in ports]
    namespace = os.open(outside, os.O_RDONLY)
    if ctypes.CDLL(None, use_errno=True).setns(namespace, _NETWORK):
        raise OSError(ctypes.get_errno(), f"can't enter {outside}")
    asyncio.run(relay(listening))
    os._exit(0)  # the thread that reads stdin may still wait


if __name__ == "__main__":
    main(*sys.argv[1:])
