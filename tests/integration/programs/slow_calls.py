"""Jobs whose user code sleeps for the seconds in the record, or in a tag for `init()`.

The path of a file instead of seconds: until the file exists.
"""

import asyncio
import ctypes
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from tidewheel import (
    FixedKeyProcessor,
    FixedKeyRecord,
    Processor,
    PunctuationType,
    Record,
    Serde,
    Serdes,
    StreamsBuilder,
)

#: Functions of a PyDLL keep the interpreter lock.
_HOLDING = ctypes.PyDLL(None)


def nap(value: bytes) -> bytes:
    if value.startswith(b"/"):
        while not Path(value.decode()).exists():
            time.sleep(0.01)
    else:
        time.sleep(float(value))
    return value


async def await_nap(value: bytes) -> bytes:
    await asyncio.sleep(float(value))
    return value


def hold(value: bytes) -> bytes:
    """Keep the lock of the interpreter for these seconds; a long call lasts one second more.

    The call watch runs once the lock is free, and names the call of that moment.
    """
    _HOLDING.usleep(int(float(value) * 1_000_000))
    if float(value) > 1:
        time.sleep(1)
    return value


def hold_once(value: bytes) -> bytes:
    """Keep the lock of the interpreter for "SECONDS FILE", unless the file exists already.

    The file receives the process id.
    """
    seconds, _, path = value.partition(b" ")
    if path:
        with suppress(FileExistsError), Path(path.decode()).open("x") as file:
            file.write(str(os.getpid()))
            file.close()
            _HOLDING.usleep(int(float(seconds) * 1_000_000))
    return value


def nap_while(value: bytes) -> bytes:
    """Sleep while the file of this name exists, if the value is a path."""
    while value.startswith(b"/") and Path(value.decode()).exists():
        time.sleep(0.02)
    return value


class Napping(FixedKeyProcessor[bytes, bytes, bytes]):
    def init(self, context: Any) -> None:
        super().init(context)
        time.sleep(float(context.app_configs()["client_tags.nap_s"]))

    def process(self, record: FixedKeyRecord[bytes, bytes]) -> None:
        self.context.forward(record)


class NappingLater(Processor[bytes, bytes, bytes, bytes]):
    def init(self, context: Any) -> None:
        super().init(context)
        self._waiting: list[Record[bytes, bytes]] = []
        context.schedule(10, PunctuationType.WALL_CLOCK_TIME, self._wake)

    def process(self, record: Record[bytes, bytes]) -> None:
        self._waiting.append(record)

    def _wake(self, _now_ms: int) -> None:
        waiting, self._waiting = self._waiting, []
        for record in waiting:
            nap(record.value)
            self.context.forward(record)


def _copy(source: str, sink: str, function: Any, serde: Any = None) -> StreamsBuilder:
    builder = StreamsBuilder()
    stream = builder.stream(source, key_serde=Serdes.bytes(), value_serde=serde or Serdes.bytes())
    if function is not None:
        stream = stream.map_values(function)
    stream.to(sink, key_serde=Serdes.bytes(), value_serde=Serdes.bytes())
    return builder


def slow_call(source: str, sink: str) -> StreamsBuilder:
    return _copy(source, sink, nap)


def slow_async(source: str, sink: str) -> StreamsBuilder:
    return _copy(source, sink, await_nap)


def slow_holding(source: str, sink: str) -> StreamsBuilder:
    return _copy(source, sink, hold)


def slow_serde(source: str, sink: str) -> StreamsBuilder:
    return _copy(source, sink, None, Serde(lambda _, value: value, lambda _, data: nap(data)))


def slow_init(source: str, sink: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    builder.stream(source, key_serde=Serdes.bytes(), value_serde=Serdes.bytes()).process_values(
        Napping
    ).to(sink, key_serde=Serdes.bytes(), value_serde=Serdes.bytes())
    return builder


def slow_punctuation(source: str, sink: str) -> StreamsBuilder:
    builder = StreamsBuilder()
    builder.stream(source, key_serde=Serdes.bytes(), value_serde=Serdes.bytes()).process(
        NappingLater
    ).to(sink, key_serde=Serdes.bytes(), value_serde=Serdes.bytes())
    return builder
