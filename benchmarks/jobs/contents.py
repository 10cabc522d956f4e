"""Contents of each job's input topics: keys, values, times and partitions.

The specification's seed determines all. Record times begin at `FIRST_MS` and increase by 1 ms a
record (by 2 ms on each side of the stream-stream join). So no record is late in its partition.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from itertools import accumulate

from benchmarks.topics.generator import BLOCK_RECORDS, InputSpec, key_bytes, record_blocks

#: 2025-01-01: long past, because a broker refuses times far ahead of its clock.
FIRST_MS = 1_735_689_600_000
#: Client values for the current time and for the key's partition.
NOW, BY_KEY = 0, -1
KINDS = (b"view", b"click", b"cart", b"purchase")
WORDS_A_LINE = 8
#: Word frequency falls with rank, as in texts.
WORDS_ZIPF = 1.0
#: Multiplied by this, numbers look random and stay unique: it shares no divisor with the modulus.
_SCATTER = 61_803_399
_KEYS_MAX = 100_000_000
#: Partition of a key by its number's last digit: the first has four times the keys of the last.
UNEVEN_PARTITIONS = (0, 0, 0, 0, 1, 1, 1, 2, 2, 3)

#: Key, value, time and partition of a record, in the client's types.
InputRecord = tuple[bytes | None, bytes, int, int]


def input_blocks(spec: InputSpec) -> Iterator[list[InputRecord]]:
    return CONTENTS[spec.content](spec)


def words(count: int, seed: int) -> list[bytes]:
    """Return different words of 3 to 10 letters, short and long ones mixed.

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
    """Yield rows, once each in random order, that name another table's row after their number.

    A row that returned before its answer would give one output less, by a system's speed.
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
    """Yield lines without a key, over the partitions in turns; the keys are words."""
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
