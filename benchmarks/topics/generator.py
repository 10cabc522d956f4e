"""Seeded input records of all jobs: the same seed gives the same records.

A key is drawn from `keys` keys, uniformly or by Zipf's law. A value starts with the record's number
and continues with text from a seeded pool, so values differ and compress little. A shorter input is
a prefix of a longer one. Results are checked against direct counts of the same sequence, made
without Kafka.
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
    """Specification of an input.

    Attributes:
        seed: The only source of the draws.
        zipf: Exponent of key shares: the nth key has the weight 1 / n ** zipf; 0: uniform.
        content: Kind of values and timestamps, a name in `jobs.contents`.
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
        return (
            f"bench-input-{self.records}-{self.keys}-{self.value_bytes}"
            f"-{self.partitions}-{self.seed}"
            + (f"-zipf-{self.zipf:g}" if self.zipf else "")
            + (f"-{self.content}" if self.content != "plain" else "")
        )

    @property
    def largest_share(self) -> float:
        """Expected share of the most frequent key; it bounds the gain of parallel keys.

        >>> InputSpec(records=1, keys=4).largest_share
        0.25
        """
        return 1 / sum(_weights(self))


def key_bytes(index: int) -> bytes:
    return b"k%08d" % index


def key_blocks(spec: InputSpec) -> Iterator[list[bytes]]:
    draw = random.Random(spec.seed)
    names = [key_bytes(index) for index in range(spec.keys)]
    shares = list(accumulate(_weights(spec))) if spec.zipf else None
    for start in range(0, spec.records, BLOCK_RECORDS):
        # Blocks are drawn at full size and cut, so a shorter input is a prefix of a longer one.
        drawn = draw.choices(names, cum_weights=shares, k=BLOCK_RECORDS)
        yield drawn[: spec.records - start]


def record_blocks(spec: InputSpec) -> Iterator[list[tuple[bytes, bytes]]]:
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
    counts: Counter[bytes] = Counter()
    for keys in key_blocks(spec):
        counts.update(keys)
    return dict(counts)


def _weights(spec: InputSpec) -> Iterator[float]:
    return (rank**-spec.zipf for rank in range(1, spec.keys + 1))


def _fillers(spec: InputSpec) -> list[bytes]:
    """Return the texts of values, drawn separately: keys stay the same when they change."""
    letters = b"abcdefghijklmnopqrstuvwxyz0123456789 "
    draw = random.Random(spec.seed + 1)
    size_bytes = spec.value_bytes - 12
    if size_bytes < 0:
        raise ValueError(
            f"value_bytes={spec.value_bytes} leaves no room for the record's number: use at least 12"
        )
    return [bytes(draw.choices(letters, k=size_bytes)) for _ in range(FILLER_TEXTS)]
