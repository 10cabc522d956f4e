"""Facts in each commit that change with the topology or its topics only: a later start compares them. Pure."""

import zlib
from collections.abc import Iterable
from typing import Final, Self

import msgspec


class CommitFacts(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Facts about one input partition and its task, as a commit carries them.

    Attributes:
        first_partitions: Partitions of the topic when the application first read it; -1 if unknown. A partition from there
            on appeared later, and is read from its beginning.
        inputs: Digest of the topics that the task reads (`inputs_digest`); 0 if unknown.
        accepted: An offset of other origin was accepted here (`accept_offsets`), so it may be below what an owner left.
    """

    first_partitions: int = -1
    inputs: int = 0
    accepted: bool = False

    def encode(self) -> bytes:
        """Return the facts as bytes.

        >>> CommitFacts.decode(CommitFacts(first_partitions=3).encode()).first_partitions
        3
        """
        return _ENCODER.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the facts in `data`; those of a commit without any (an earlier version, a bulk load) are unknown."""
        if not data:
            return cls()
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except msgspec.MsgspecError:
            return cls()


_ENCODER: Final = msgspec.msgpack.Encoder()


def inputs_digest(topics: Iterable[str]) -> int:
    """Return a digest of a set of topics, never 0.

    >>> inputs_digest(["b", "a"]) == inputs_digest({"a", "b"}) != inputs_digest(["a"])
    True
    """
    return zlib.crc32("\n".join(sorted(set(topics))).encode()) or 1
