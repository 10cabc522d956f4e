"""Checks of outputs by value, before a run's time counts.

The output topic is read with read_committed. In counting jobs the last record of each key must be
the direct count of the input, and counts must never fall. In copying jobs each key must come out as
often as it went in. `jobs.checks` reads other outputs. The number of records is the metric
`outputs`: systems with fewer outputs are not compared with those that write every update.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import orjson

from benchmarks.environment.peer_process import RunFailedError
from benchmarks.topics.topic_reader import partition_count, read_to_end

EXAMPLES_SHOWN = 3
#: Errors of readers for bytes in another form.
_MALFORMED = (AttributeError, KeyError, OverflowError, TypeError, ValueError)


class UnreadableOutputError(RunFailedError):
    pass


class Tally(Protocol):
    @property
    def outputs(self) -> int: ...

    def add(self, records: Iterable[tuple[bytes, bytes | None]]) -> None: ...

    def problems(self, expected: Mapping[bytes, int]) -> list[str]: ...


@dataclass(slots=True)
class OutputTally:
    """Tally of an output topic of counts, or of copies.

    Attributes:
        decode: Turns a value into a count; None if the job copies.
        counts: Last count of each key, or number of its records.
        fallen: Records whose count did not increase: key, before, after.
    """

    decode: Callable[[bytes], int] | None
    counts: dict[bytes, int] = field(default_factory=dict[bytes, int])
    outputs: int = 0
    fallen: list[tuple[bytes, int, int]] = field(default_factory=list[tuple[bytes, int, int]])

    def add(self, records: Iterable[tuple[bytes, bytes | None]]) -> None:
        counts, decode = self.counts, self.decode
        for key, value in records:
            self.outputs += 1
            before = counts.get(key, 0)
            if decode is None:
                counts[key] = before + 1
                continue
            counts[key] = after = decode(value or b"")
            if after <= before:
                self.fallen.append((key, before, after))

    def problems(self, expected: Mapping[bytes, int]) -> list[str]:
        found = differences(self.counts, expected)
        if self.fallen:
            key, before, after = self.fallen[0]
            found.append(
                f"{len(self.fallen)} times a count did not grow,"
                f" e.g. {_shown([key])} from {before} to {after}"
            )
        return found


def differences(found: Mapping[bytes, int], expected: Mapping[bytes, int]) -> list[str]:
    texts: list[str] = []
    missing = [key for key in expected if key not in found]
    unknown = [key for key in found if key not in expected]
    wrong = [key for key, count in expected.items() if found.get(key, count) != count]
    if missing:
        texts.append(f"{len(missing)} keys have no output, e.g. {_shown(missing)}")
    if unknown:
        texts.append(f"{len(unknown)} keys are not in the input, e.g. {_shown(unknown)}")
    if wrong:
        key = wrong[0]
        texts.append(
            f"{len(wrong)} keys end with a wrong value, e.g. {_shown(wrong)}"
            f" ({found[key]} instead of {expected[key]})"
        )
    return texts


def decoder(name: str) -> Callable[[bytes], int] | None:
    match name:
        case "int64":
            return _int64
        case "json":
            return _json
        case "copy":
            return None
        case _:
            raise ValueError(f"unknown output format {name!r}: use int64, json or copy")


def read_outputs(bootstrap_servers: str, topic: str, tally: Tally) -> None:
    """Read an output topic to its end into a tally.

    Raises:
        UnreadableOutputError: A record does not have the form of the job's results.
    """
    partitions = range(partition_count(bootstrap_servers, topic))
    for batch in read_to_end(bootstrap_servers, topic, partitions):
        records = [(_bytes(message.key()), _value(message.value())) for message in batch]
        try:
            tally.add(records)
        except _MALFORMED as error:
            raise UnreadableOutputError(
                f"output {tally.outputs} of {topic} cannot be read: {error!r}"
            ) from error


def _int64(value: bytes) -> int:
    return int.from_bytes(value, "big", signed=True)


def _json(value: bytes) -> int:
    decoded = orjson.loads(value)
    if not isinstance(decoded, int):
        raise TypeError(f"an output value is {decoded!r}: a count was expected")
    return decoded


def _bytes(data: str | bytes | None) -> bytes:
    return data.encode() if isinstance(data, str) else data or b""


def _value(data: str | bytes | None) -> bytes | None:
    return None if data is None else _bytes(data)


def _shown(keys: list[bytes]) -> str:
    return ", ".join(repr(key.decode(errors="replace")) for key in keys[:EXAMPLES_SHOWN])
