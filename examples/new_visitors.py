"""Detect new visitors, with a Bloom filter as the store.

    tidewheel broker --port 9092 --topics visits:4,new-visitors:4
    tidewheel run examples/new_visitors.py:topology

Write visitors to `visits`, as key and value; `new-visitors` receives those that are certainly new.
The filter has 128 KiB per task; after 100,000 visitors it misses about one of a hundred new ones.
"""

import struct
from collections.abc import Sequence
from hashlib import blake2b

from tidewheel import ChangelogRecord, Processor, Record, StateStore, Stores, StreamsBuilder

config = {"application_id": "new-visitors"}

BLOCKS, BLOCK_BITS, BITS = 2_048, 512, 5


class BloomFilter(StateStore):
    """Bits in blocks: a value sets a few bits of one block, which is logged as one changelog record."""

    def __init__(self) -> None:
        self.blocks: dict[bytes, int] = {}

    def add(self, value: str) -> bool:
        """Add a value; return True if it is certainly new."""
        digest = blake2b(value.encode(), digest_size=2 * (BITS + 1)).digest()
        number, *bits = struct.unpack(f">{BITS + 1}H", digest)
        key = (number % BLOCKS).to_bytes(2, "big")
        before = after = self.blocks.get(key, 0)
        for bit in bits:
            after |= 1 << bit % BLOCK_BITS
        if after == before:
            return False
        self.context.log_change(key, after.to_bytes(BLOCK_BITS // 8, "big"))
        self.blocks[key] = after
        return True

    def restore(self, records: Sequence[ChangelogRecord]) -> None:
        """Restore a logged block."""
        for record in records:
            self.blocks[record.key] = int.from_bytes(record.value or b"", "big")


class OnlyNew(Processor[str, str, str, str]):
    """Forwards visitors not seen before."""

    def process(self, record: Record[str, str]) -> None:
        """Forward the record if its visitor is new."""
        if self.context.get_state_store("seen").add(record.value):
            self.context.forward(record)


def topology() -> StreamsBuilder:
    builder = StreamsBuilder().add_state_store(Stores.custom("seen", BloomFilter))
    visits = builder.stream("visits", key_serde=str, value_serde=str)
    visits.process(OnlyNew, stores=["seen"]).to("new-visitors", key_serde=str, value_serde=str)
    return builder
