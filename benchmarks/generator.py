"""The seeded records every job reads: same seed, same records, whoever asks and whenever.

A record's key is drawn from `keys` keys, uniformly or by Zipf's law; its value starts with the record's number and
is filled with text from a seeded pool, so that no two values are equal and nothing compresses to
nothing. A shorter input is a prefix of a longer one. The direct count of an input is taken from
the same sequence, without Kafka, and is what results are checked against.
"""

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

BLOCK_RECORDS = 10_000
FILLER_TEXTS = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """What an input is made of.

    Attributes:
        records: How many records there are.
        keys: How many different keys they are drawn from.
        value_bytes: The size of each value.
        partitions: How many partitions the topic has.
        seed: What the draws depend on, and all they depend on.
        zipf: Exponent of the keys' shares: the nth key is drawn as often as 1 / n ** zipf says; 0: all alike.
        content: What the values are, and whether records have times of their own: a name in `jobs.contents`.
    """

    records: int
    keys: int = 100_000
    value_bytes: int = 90
    partitions: int = 4
    seed: int = 20_260_101
    zipf: float = 0.0
    content: str = "plain"

    @property
    def topic(self) -> str:
        """The topic's name, which says everything that decides its content."""
        return (
            f"bench-input-{self.records}-{self.keys}-{self.value_bytes}"
            f"-{self.partitions}-{self.seed}"
            + (f"-zipf-{self.zipf:g}" if self.zipf else "")
            + (f"-{self.content}" if self.content != "plain" else "")
        )

    @property
    def largest_share(self) -> float:
        """Which part of the records the most frequent key has, on average: bounds what keys in parallel can gain.

        >>> InputSpec(records=1, keys=4).largest_share
        0.25
        """
        return 1 / sum(_weights(self))


def key_bytes(index: int) -> bytes:
    """Return the key with this index: nine characters."""
    return b"k%08d" % index


def key_blocks(spec: InputSpec) -> Iterator[list[bytes]]:
    """Yield the keys of the input in order, a block at a time."""
    draw = random.Random(spec.seed)
    names = [key_bytes(index) for index in range(spec.keys)]
    shares = list(accumulate(_weights(spec))) if spec.zipf else None
    for start in range(0, spec.records, BLOCK_RECORDS):
        # Blocks are drawn at full size and cut, so that a shorter input is a prefix of a longer.
        drawn = draw.choices(names, cum_weights=shares, k=BLOCK_RECORDS)
        yield drawn[: spec.records - start]


def record_blocks(spec: InputSpec) -> Iterator[list[tuple[bytes, bytes]]]:
    """Yield the records of the input in order, a block of `(key, value)` at a time."""
    fillers = _fillers(spec)
    number = 0
    for keys in key_blocks(spec):
        block: list[tuple[bytes, bytes]] = []
        for key in keys:
            block.append((key, b"%012d%b" % (number, fillers[number % FILLER_TEXTS])))
            number += 1
        yield block


@cache
def direct_counts(spec: InputSpec) -> Mapping[bytes, int]:
    """Return how often each key occurs in the input, counted once and without any of the systems."""
    counts: Counter[bytes] = Counter()
    for keys in key_blocks(spec):
        counts.update(keys)
    return dict(counts)


def _weights(spec: InputSpec) -> Iterator[float]:
    """Yield how often each key is drawn, in relation to the first."""
    return (rank**-spec.zipf for rank in range(1, spec.keys + 1))


def _fillers(spec: InputSpec) -> list[bytes]:
    """Return the texts that fill the values, drawn apart from the keys so that both stay put."""
    letters = b"abcdefghijklmnopqrstuvwxyz0123456789 "
    draw = random.Random(spec.seed + 1)
    size_bytes = spec.value_bytes - 12
    if size_bytes < 0:
        raise ValueError(
            f"value_bytes={spec.value_bytes} leaves no room for the record's number: use at least 12"
        )
    return [bytes(draw.choices(letters, k=size_bytes)) for _ in range(FILLER_TEXTS)]
