"""Readers of each job's output, in every format that systems write.

A reader turns a key and a value into a name and a number of the direct computation
(`jobs.expected`); None is a deletion. For most jobs the last record of each name is the result.
Where every output counts, a name's numbers are added up: missing, surplus and wrong ones show.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

import orjson

from benchmarks.jobs.expected import event_form, fingerprint, of_session, of_window
from benchmarks.topics.outputs import OutputTally, Tally, decoder, differences

Reader = Callable[[bytes, bytes | None], tuple[bytes, int | None]]


@dataclass(slots=True)
class NamedTally:
    """Results in an output topic whose results are not counts of its keys.

    Attributes:
        read: Turns a key and a value into a name and a number.
        sums: Every output counts; else each name's last one.
        settle: Brings the last numbers into the result's form.
        outputs: Number of records, deletions included.
    """

    read: Reader
    sums: bool = False
    settle: Callable[[dict[bytes, int]], dict[bytes, int]] = dict
    found: dict[bytes, int] = field(default_factory=dict[bytes, int])
    outputs: int = 0

    def add(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        read, found = self.read, self.found
        for key, value in records:
            self.outputs += 1
            name, number = read(key, value)
            if number is None:
                found.pop(name, None)
            elif self.sums:
                found[name] = found.get(name, 0) + number
            else:
                found[name] = number

    def problems(self, expected: Mapping[bytes, int]) -> list[str]:
        return differences(self.settle(self.found), expected)


def tally_for(check: str, output_format: str) -> Tally:
    """Return a tally for a system's output.

    Args:
        check: The kind of output: `counts`, `windows`, `sessions`, `events`, `joined` or
            `last_joined`.
        output_format: `int64`, as Kafka Streams writes it; `json`; `copy`, for copied input.

    Raises:
        ValueError: This kind has no reader in this format.
    """
    if check == "counts" or output_format == "copy":
        return OutputTally(decoder(output_format))
    tally = _TALLIES.get((check, output_format))
    if tally is None:
        raise ValueError(f"no reader for {check!r} written as {output_format!r}")
    return tally()


def sessions_by_start(found: dict[bytes, int]) -> dict[bytes, int]:
    """Return the remaining sessions by key and start; Kafka's keys have end and start.

    Two sessions with one start add up to a number that no session has.
    """
    sessions: dict[bytes, int] = {}
    for key, count in found.items():
        end_ms, start_ms = (int.from_bytes(part, "big") for part in (key[-16:-8], key[-8:]))
        name = of_window(key[:-16], start_ms)
        sessions[name] = sessions.get(name, 0) + of_session(count, start_ms, end_ms)
    return sessions


def _number(key: bytes, value: bytes | None) -> tuple[bytes, int | None]:
    return key, None if value is None else int.from_bytes(value, "big", signed=True)


def _window_of_dict(key: bytes, value: bytes | None) -> tuple[bytes, int | None]:
    window = orjson.loads(value or b"")
    return of_window(key, window["start"]), window["value"]


def _session_of_dict(key: bytes, value: bytes | None) -> tuple[bytes, int | None]:
    session = orjson.loads(value or b"")
    # Its end is 1 ms after its last record.
    number = of_session(session["value"], session["start"], session["end"] - 1)
    return of_window(key, session["start"]), number


def _event(key: bytes, value: bytes | None) -> tuple[bytes, int | None]:
    event = orjson.loads(value or b"")
    return key, fingerprint(event_form(event["id"], event["kind"], event["cents"]))


def _text(key: bytes, value: bytes | None) -> tuple[bytes, int | None]:
    return key, None if value is None else fingerprint(value)


_TALLIES: Mapping[tuple[str, str], Callable[[], NamedTally]] = {
    ("windows", "int64"): partial(NamedTally, _number),
    ("windows", "json"): partial(NamedTally, _window_of_dict),
    ("sessions", "int64"): partial(NamedTally, _number, settle=sessions_by_start),
    ("sessions", "json"): partial(NamedTally, _session_of_dict),
    ("events", "int64"): partial(NamedTally, _event, sums=True),
    ("events", "json"): partial(NamedTally, _event, sums=True),
    ("joined", "int64"): partial(NamedTally, _text, sums=True),
    ("joined", "json"): partial(NamedTally, _text, sums=True),
    ("last_joined", "int64"): partial(NamedTally, _text),
}
