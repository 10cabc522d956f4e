"""What the input topics of each job hold: keys, values, times and, where it matters, partitions.

All follow from the specification's seed. Where records have times of their own, these begin at `FIRST_MS` and go up
by a millisecond a record (two for each side of the stream-stream join), so nothing is ever late within a partition.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

from benchmarks.generator import BLOCK_RECORDS, InputSpec, key_bytes, record_blocks

#: 2025-01-01: long past, because a broker refuses times that are far ahead of its own clock.
FIRST_MS = 1_735_689_600_000
#: What a client takes for "now" and for "the partition of the key".
NOW, BY_KEY = 0, -1
KINDS = (b"view", b"click", b"cart", b"purchase")
WORDS_A_LINE = 8
#: How often a word occurs falls with its rank, as in texts.
WORDS_ZIPF = 1.0
#: Times this, numbers are as if drawn, and none comes twice: it has no divisor in common with how many keys there can be.
_SCATTER = 61_803_399
_KEYS_MAX = 100_000_000
#: The partition of a key, by the last digit of its number: the first has four times as much as the last.
UNEVEN_PARTITIONS = (0, 0, 0, 0, 1, 1, 1, 2, 2, 3)

#: Key, value, time and partition of a record, as a client is given them.
InputRecord = tuple[bytes | None, bytes, int, int]


def input_blocks(spec: InputSpec) -> Iterator[list[InputRecord]]:
    """Yield the records of an input in order, a block at a time."""
    return CONTENTS[spec.content](spec)


def words(count: int, seed: int) -> list[bytes]:
    """Return this many different words of 3 to 10 letters, shorter and longer ones mixed.

    >>> words(3, seed=1)
    [b'oubdt', b'qucavltals', b'pciaqa']
    """
    draw = random.Random(seed)
    found: dict[bytes, None] = {}
    while len(found) < count:
        size = draw.randint(3, 10)
        found[bytes(draw.choices(b"abcdefghijklmnopqrstuvwxyz", k=size))] = None
    return list(found)


def _plain(spec: InputSpec) -> Iterator[list[InputRecord]]:
    for block in record_blocks(spec):
        yield [(key, value, NOW, BY_KEY) for key, value in block]


def _timed(spec: InputSpec) -> Iterator[list[InputRecord]]:
    return _spaced(spec, first_ms=FIRST_MS, step_ms=1)


def _left(spec: InputSpec) -> Iterator[list[InputRecord]]:
    return _unevenly(_spaced(spec, first_ms=FIRST_MS, step_ms=2))


def _right(spec: InputSpec) -> Iterator[list[InputRecord]]:
    return _unevenly(_spaced(spec, first_ms=FIRST_MS + 1, step_ms=2))


def _spaced(spec: InputSpec, *, first_ms: int, step_ms: int) -> Iterator[list[InputRecord]]:
    at_ms = first_ms
    for block in record_blocks(spec):
        records: list[InputRecord] = []
        for key, value in block:
            records.append((key, value, at_ms, BY_KEY))
            at_ms += step_ms
        yield records


def _unevenly(blocks: Iterator[list[InputRecord]]) -> Iterator[list[InputRecord]]:
    for block in blocks:
        yield [
            (key, value, at_ms, UNEVEN_PARTITIONS[key[-1] - 48])
            for key, value, at_ms, _ in block
            if key is not None
        ]


def _rows(spec: InputSpec) -> Iterator[list[InputRecord]]:
    """One row for each key, all of them older than any record of a stream."""
    if spec.records != spec.keys:
        raise ValueError(f"a table of {spec.keys} keys has as many records, not {spec.records}")
    at_ms = FIRST_MS - spec.records
    number = 0
    for block in record_blocks(spec):
        records: list[InputRecord] = []
        for _, value in block:
            records.append((key_bytes(number), value, at_ms + number, BY_KEY))
            number += 1
        yield records


def _references(spec: InputSpec) -> Iterator[list[InputRecord]]:
    """Rows that come once each, in no order, and name another table's row behind their number.

    A row that came again before its answer is back would have one output less, and how many do depends on a system's
    speed; so none does.
    """
    draw = random.Random(spec.seed + 2)
    others = [key_bytes(index) for index in range(referred_keys(spec))]
    number = 0
    for block in _timed(spec):
        chosen = draw.choices(others, k=BLOCK_RECORDS)
        records: list[InputRecord] = []
        for (_, value, at_ms, partition), other in zip(block, chosen, strict=False):
            key = key_bytes(number * _SCATTER % _KEYS_MAX)
            records.append((key, value[:12] + other + value[21:], at_ms, partition))
            number += 1
        yield records


def referred_keys(spec: InputSpec) -> int:
    """Return how many rows the table has that rows with this specification refer to."""
    return max(1, spec.keys // 10)


def _events(spec: InputSpec) -> Iterator[list[InputRecord]]:
    draw = random.Random(spec.seed + 2)
    number = 0
    for block in record_blocks(spec):
        records: list[InputRecord] = []
        for key, value in block:
            event = b'{"id":%d,"user":"%b","kind":"%b","cents":%d,"note":"%b"}' % (
                number,
                key,
                KINDS[int(draw.random() * len(KINDS))],
                int(draw.random() * 10_000),
                value[12:42],
            )
            records.append((key, event, FIRST_MS + number, BY_KEY))
            number += 1
        yield records


def _lines(spec: InputSpec) -> Iterator[list[InputRecord]]:
    """Lines without a key, dealt out to the partitions in turns; the specification's keys are the words."""
    draw = random.Random(spec.seed)
    vocabulary = words(spec.keys, spec.seed + 1)
    shares = list(accumulate(rank**-WORDS_ZIPF for rank in range(1, spec.keys + 1)))
    for start in range(0, spec.records, BLOCK_RECORDS):
        drawn = draw.choices(vocabulary, cum_weights=shares, k=BLOCK_RECORDS * WORDS_A_LINE)
        yield [
            (
                None,
                b" ".join(drawn[place * WORDS_A_LINE : (place + 1) * WORDS_A_LINE]),
                FIRST_MS + start + place,
                (start + place) % spec.partitions,
            )
            for place in range(min(BLOCK_RECORDS, spec.records - start))
        ]


CONTENTS: Mapping[str, Callable[[InputSpec], Iterator[list[InputRecord]]]] = {
    "plain": _plain,
    "timed": _timed,
    "left": _left,
    "right": _right,
    "rows": _rows,
    "references": _references,
    "events": _events,
    "lines": _lines,
}
