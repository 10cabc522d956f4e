"""Own keys: rows that a user's processor may access in a key range. Pure.

A `keyed = True` processor has one object per range. Each scans its range's rows, so together they
see each row once. A write to another range's row raises immediately: two writers would corrupt it.
"""

import zlib
from collections.abc import Iterable

import msgspec

from tidewheel.state_stores.errors import StreamsError


class OwnKeys(msgspec.Struct, frozen=True):
    """Rows of one key range in stores that user processors scan (`users`: nodes by store).

    >>> upper = OwnKeys(1 << 31, 1 << 32, {"counts": ("counter",)})
    >>> upper.holds("counts", b"alice"), upper.holds("counts", b"bob"), upper.holds("other", b"alice")
    (False, True, True)
    """

    first_hash: int
    end_hash: int
    users: dict[str, tuple[str, ...]]

    def limits(self, store: str) -> bool:
        return store in self.users

    def holds(self, store: str, key: bytes) -> bool:
        """Return True for rows of the range, and for all rows of stores not in `users`."""
        return store not in self.users or self.first_hash <= zlib.crc32(key) < self.end_hash

    def check(self, store: str, keys: Iterable[bytes]) -> None:
        """Raise `StreamsError` if a written key belongs to another range."""
        if store not in self.users:
            return
        for key in keys:
            hash_ = zlib.crc32(key)
            if not self.first_hash <= hash_ < self.end_hash:
                names = " or ".join(self.users[store])
                raise StreamsError(
                    f"{names} wrote to store {store} by a key of hash {hash_:08x}, which is not that of the record: the key "
                    f"range ends at {self.end_hash:08x} and begins at {self.first_hash:08x}. A processor with `keyed = True` "
                    "writes rows of its records' keys only; take the word away, and its tasks stay in one piece"
                )
