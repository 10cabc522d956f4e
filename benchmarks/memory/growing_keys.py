"""Input with growing keys: every second record has a new key, the others an old one (pure)."""

import random
from collections import Counter
from collections.abc import Iterator

from benchmarks.topics.generator import key_bytes

SEED = 20_260_401
_VALUE = b"v" * 90


def growing_keys(records: int) -> Iterator[bytes]:
    """Yield each record's key: half as many keys as records; old keys are equally likely.

    >>> list(growing_keys(5))[::2]
    [b'k00000000', b'k00000001', b'k00000002']
    """
    draw = random.Random(SEED)
    for number in range(records):
        known = number // 2 + 1
        yield key_bytes(number // 2 if number % 2 == 0 else int(draw.random() * known))


def growing_records(records: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the records, about 100 bytes each."""
    return ((key, _VALUE) for key in growing_keys(records))


def growing_counts(records: int) -> Counter[bytes]:
    return Counter(growing_keys(records))
