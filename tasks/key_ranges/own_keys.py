"""What a user's processor may see and write in a key range: rows of the range's own keys. Pure.

A processor that says `keyed = True` has one object per range. A scan of its store gives each object the rows of its own range,
so that all of them together see each row once, as the one object of an uncut task does. A row of another range's key would be
written by two ranges, each of which thinks it is the only one; so writing one is an error at once, and not a wrong count later.
"""

import zlib
from collections.abc import Iterable

import msgspec

from tidewheel.state_stores.errors import StreamsError


class OwnKeys(msgspec.Struct, frozen=True):
    """The keys of one range, in the stores that processors of the user's use.

    Attributes:
        first_hash: The first hash of the range.
        end_hash: The first hash behind it.
        users: Those stores, each with the names of the nodes that use it. Their keys are the records' keys, byte for byte.

    >>> upper = OwnKeys(1 << 31, 1 << 32, {"counts": ("counter",)})
    >>> upper.holds("counts", b"alice"), upper.holds("counts", b"bob"), upper.holds("other", b"alice")
    (False, True, True)
    """

    first_hash: int
    end_hash: int
    users: dict[str, tuple[str, ...]]

    def limits(self, store: str) -> bool:
        """Return whether a store is one of those."""
        return store in self.users

    def holds(self, store: str, key: bytes) -> bool:
        """Return whether a row belongs to the range, or is of a store that nobody scans."""
        return store not in self.users or self.first_hash <= zlib.crc32(key) < self.end_hash

    def check(self, store: str, keys: Iterable[bytes]) -> None:
        """Raise `StreamsError` if one of the written keys is another range's."""
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
