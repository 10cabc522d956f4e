"""Checks what a system wrote, by value, before its time counts.

The output topic is read with read_committed. For a job that counts, the last record of each key
must be the direct count of the input, and a key's counts must never fall; for a job that copies,
each key must have come out as often as it went in. The number of records is the metric
`outputs`: systems that write less often are not compared with those that write every update.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import orjson

from benchmarks.topic_reader import partition_count, read_to_end

EXAMPLES_SHOWN = 3


@dataclass(slots=True)
class OutputTally:
    """What was found in an output topic.

    Attributes:
        decode: Turns a value into a count, or None where the job only copies.
        counts: The last count of each key, or how often the key came out.
        outputs: How many records there were.
        fallen: Records whose count was not above the one before: key, before, after.
    """

    decode: Callable[[bytes], int] | None
    counts: dict[bytes, int] = field(default_factory=dict[bytes, int])
    outputs: int = 0
    fallen: list[tuple[bytes, int, int]] = field(default_factory=list[tuple[bytes, int, int]])

    def add(self, records: Iterable[tuple[bytes, bytes]]) -> None:
        """Take records in the order of their partition."""
        counts, decode = self.counts, self.decode
        for key, value in records:
            self.outputs += 1
            before = counts.get(key, 0)
            if decode is None:
                counts[key] = before + 1
                continue
            counts[key] = after = decode(value)
            if after <= before:
                self.fallen.append((key, before, after))

    def problems(self, expected: Mapping[bytes, int]) -> list[str]:
        """Return what is wrong, in sentences; nothing means that the time may count."""
        found: list[str] = []
        missing = [key for key in expected if key not in self.counts]
        unknown = [key for key in self.counts if key not in expected]
        wrong = [key for key, count in expected.items() if self.counts.get(key, count) != count]
        if missing:
            found.append(f"{len(missing)} keys have no output, e.g. {_shown(missing)}")
        if unknown:
            found.append(f"{len(unknown)} keys are not in the input, e.g. {_shown(unknown)}")
        if wrong:
            key = wrong[0]
            found.append(
                f"{len(wrong)} keys end with a wrong value, e.g. {_shown(wrong)}"
                f" ({self.counts[key]} instead of {expected[key]})"
            )
        if self.fallen:
            key, before, after = self.fallen[0]
            found.append(
                f"{len(self.fallen)} times a count did not grow,"
                f" e.g. {_shown([key])} from {before} to {after}"
            )
        return found


def decoder(name: str) -> Callable[[bytes], int] | None:
    """Return how a system's output values are read: `int64`, `json` or `copy`."""
    match name:
        case "int64":
            return _int64
        case "json":
            return _json
        case "copy":
            return None
        case _:
            raise ValueError(f"unknown output format {name!r}: use int64, json or copy")


def read_outputs(bootstrap_servers: str, topic: str, output_format: str) -> OutputTally:
    """Read an output topic to its end and return what is in it."""
    tally = OutputTally(decoder(output_format))
    partitions = range(partition_count(bootstrap_servers, topic))
    for batch in read_to_end(bootstrap_servers, topic, partitions):
        tally.add((_bytes(message.key()), _bytes(message.value())) for message in batch)
    return tally


def _int64(value: bytes) -> int:
    return int.from_bytes(value, "big", signed=True)


def _json(value: bytes) -> int:
    decoded = orjson.loads(value)
    if not isinstance(decoded, int):
        raise TypeError(f"an output value is {decoded!r}: a count was expected")
    return decoded


def _bytes(data: str | bytes | None) -> bytes:
    """Return a key or value as the client hands it out, which is bytes; a null one is empty."""
    return data.encode() if isinstance(data, str) else data or b""


def _shown(keys: list[bytes]) -> str:
    return ", ".join(repr(key.decode(errors="replace")) for key in keys[:EXAMPLES_SHOWN])
