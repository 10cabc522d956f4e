"""A worker with the next version of the group protocol.

It is `programs.worker` with its own watchdog (`... next_version watchdog`). Both claim to be one
version ahead:

- Beats and members have one more field.
- Members send one more kind of message to the inbox (gossip).
- Each transaction of the leader ends with one more kind of record (forecast), after a
  snapshot and not counted by it.

This module replaces the functions by which `tidewheel.streams.kafka.admin.group_log` writes and
reads. It logs each message and record of the next version that it could read.
"""

import functools
import operator
import sys
from collections.abc import Sequence
from typing import Any, Final, get_args

import msgspec

from tests.integration.programs import worker
from tidewheel.rebalance.protocol.decoding import Rejection
from tidewheel.rebalance.protocol.messages import (
    PROTOCOL_MAX,
    AnyMessage,
    Beat,
    LeaderBeat,
    Message,
    read_message,
)
from tidewheel.rebalance.protocol.records import (
    AnyRecord,
    LogRecord,
    MemberRecord,
    read_record,
    record_keys,
)
from tidewheel.streams import kafka_streams as app
from tidewheel.streams.kafka.admin import group_log
from tidewheel.streams.kafka.admin.group_log import KafkaGroupLog
from tidewheel.streams.processes.watchdog.__main__ import main as watch
from tidewheel.streams.worker import worker_hello
from tidewheel.streams.worker.host_watchdog import HostWatchdog

PROGRAM: Final = "tests.integration.programs.next_version"
NEXT: Final = PROTOCOL_MAX + 1


class Mood(msgspec.Struct, frozen=True, kw_only=True):
    colour: str
    since: tuple[int, ...] = ()


class NextBeat(Beat, frozen=True, kw_only=True, tag="BEAT"):
    mood: Mood


class NextMember(MemberRecord, frozen=True, kw_only=True, tag="MEMBER"):
    mood: Mood


class Gossip(Message, frozen=True, kw_only=True, tag="GOSSIP"):
    about: str


class Forecast(LogRecord, frozen=True, kw_only=True, tag="FORECAST"):
    weather: str


_MOOD: Final = Mood(colour="blue", since=(1, 2, 3))
_ENCODER: Final = msgspec.json.Encoder(order="deterministic")
_MESSAGES: Final = msgspec.json.Decoder[Any](
    functools.reduce(operator.or_, {*get_args(AnyMessage), NextBeat, Gossip} - {Beat})
)
_RECORDS: Final = msgspec.json.Decoder[Any](
    functools.reduce(operator.or_, {*get_args(AnyRecord), NextMember, Forecast} - {MemberRecord})
)


class NextWire:
    def __init__(self) -> None:
        self._understood: set[str] = set()

    def install(self) -> None:
        patches: dict[str, Any] = {
            "encode_message": self.encode_message,
            "read_message": self.read_message,
            "encode_record": self.encode_record,
            "read_record": self.read_record,
            "record_keys": self.keys,
        }
        for name, patch in patches.items():
            assert hasattr(group_log, name), f"nothing writes or reads by {name} any more"
            setattr(group_log, name, patch)
        say, append = KafkaGroupLog.send, KafkaGroupLog.append

        def say_more(log: KafkaGroupLog, messages: Sequence[AnyMessage]) -> None:
            gossip: list[Any] = [
                Gossip(
                    app=message.app,
                    member=message.member,
                    incarnation=message.incarnation,
                    about="the leader",
                )
                for message in messages
                if isinstance(message, Beat | LeaderBeat)
            ]
            say(log, [*gossip, *messages])

        def append_more(log: KafkaGroupLog, records: Sequence[AnyRecord]) -> None:
            forecast: Any = Forecast(leader_epoch=records[-1].leader_epoch, weather="fair")
            append(log, [*records, forecast])

        KafkaGroupLog.send = say_more  # type: ignore[method-assign,assignment] # the program pretends
        KafkaGroupLog.append = append_more  # type: ignore[method-assign,assignment] # the same

    def encode_message(self, message: AnyMessage | Gossip) -> bytes:
        if isinstance(message, Beat):
            message = NextBeat(**{**msgspec.structs.asdict(message), "mood": _MOOD})
        return _ENCODER.encode(msgspec.structs.replace(message, v=NEXT))

    def read_message(self, data: bytes | None) -> AnyMessage | Rejection | None:
        message = read_message(data)
        if data is None or b'"v":%d' % NEXT not in data:
            return message
        newer = _MESSAGES.decode(data)
        if isinstance(newer, NextBeat):
            assert newer.mood == _MOOD
            self._note("the mood", newer.member)
        elif isinstance(newer, Gossip):
            self._note("gossip", newer.member)
            return None
        return newer  # type: ignore[no-any-return] # one of the kinds there are, or its child

    def encode_record(self, record: AnyRecord | Forecast) -> bytes:
        if isinstance(record, MemberRecord):
            record = NextMember(**{**msgspec.structs.asdict(record), "mood": _MOOD})
        return _ENCODER.encode(msgspec.structs.replace(record, v=NEXT))

    def read_record(self, data: bytes | None) -> AnyRecord | Rejection | None:
        record = read_record(data)
        if data is None or b'"v":%d' % NEXT not in data:
            return record
        newer = _RECORDS.decode(data)
        if isinstance(newer, NextMember):
            assert newer.mood == _MOOD
        elif isinstance(newer, Forecast):
            self._note("the forecast", f"epoch {newer.leader_epoch}")
            return None
        return newer  # type: ignore[no-any-return] # one of the kinds there are, or its child

    def keys(self, records: Sequence[AnyRecord]) -> list[bytes]:
        """Return the records' keys; the last record of a transaction is the forecast."""
        epoch = records[-1].leader_epoch
        return [*record_keys(records[:-1]), f"{epoch}/forecast".encode()]

    def _note(self, what: str, whose: str) -> None:
        line = f"next version: understood {what} of {whose}\n"
        if line not in self._understood:
            self._understood.add(line)
            sys.stderr.write(line)


def main(arguments: list[str]) -> int:
    NextWire().install()
    if arguments[:1] == ["watchdog"]:
        return watch(arguments[1:])
    command = (sys.executable, "-m", PROGRAM, "watchdog")
    patches: list[tuple[Any, str, Any]] = [
        (app, "HostWatchdog", functools.partial(HostWatchdog, command=command)),
        (worker_hello, "PROTOCOL_MAX", NEXT),
    ]
    for owner, name, patch in patches:
        assert hasattr(owner, name), f"{owner.__name__} has no {name} any more"
        setattr(owner, name, patch)
    return worker.main()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
