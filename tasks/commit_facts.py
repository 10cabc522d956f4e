"""Facts in each commit that change with the topology or its topics only: a later start compares them. Pure."""

import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Final, Self

import msgspec


class CommitFacts(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Facts about one input partition and its task, as a commit carries them.

    Attributes:
        first_partitions: Partitions of the topic when the application first read it; -1 if unknown. A partition from there
            on appeared later, and is read from its beginning.
        inputs: Digest of the topics that the task reads (`inputs_digest`); 0 if unknown.
        accepted: An offset of other origin was accepted here (`accept_offsets`), so it may be below what an owner left.
        operators: Digest of each generated name of the application, and the fingerprint of its operator
            (`encode_operators`).
        details: Finer fingerprint of each of them, in the same order (`encode_details`); empty in commits of earlier
            versions.
    """

    first_partitions: int = -1
    inputs: int = 0
    accepted: bool = False
    operators: bytes = b""
    details: bytes = b""

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
_PAIR: Final = struct.Struct(">II")
#: Limit of generated names in a commit.
_NAMES_MAX: Final = 64
_DETAIL: Final = struct.Struct(">I")
#: Bytes that facts take next to the operators and their details, at most.
_REST_BYTES: Final = 27


class NamedOperator(msgspec.Struct, frozen=True, kw_only=True):
    """Operator behind a generated name.

    Attributes:
        fingerprint: Of its kind and input, and of the names and constants in its functions.
        details: Of the operations of its functions as well.
        location: Line of the user's program that made it.
    """

    fingerprint: int
    details: int = 0
    location: str = ""


def encode_operators(operators: Mapping[str, NamedOperator]) -> bytes:
    """Return the operators of generated names as bytes."""
    first = sorted(operators.items())[:_NAMES_MAX]
    return b"".join(_PAIR.pack(name_digest(name), each.fingerprint) for name, each in first)


def encode_details(operators: Mapping[str, NamedOperator]) -> bytes:
    """Return the finer fingerprints of the same operators as bytes."""
    first = sorted(operators.items())[:_NAMES_MAX]
    return b"".join(_DETAIL.pack(each.details) for _, each in first)


def decode_operators(data: bytes) -> dict[int, int]:
    if len(data) % _PAIR.size:
        return {}
    return dict(_PAIR.iter_unpack(data))


def decode_details(facts: CommitFacts) -> dict[int, int]:
    """Return finer fingerprints by the digest of their names, as far as a commit has them."""
    names = decode_operators(facts.operators)
    if len(facts.details) != _DETAIL.size * len(names):
        return {}
    return dict(zip(names, (each for (each,) in _DETAIL.iter_unpack(facts.details)), strict=True))


def name_digest(name: str) -> int:
    """Return the digest by which a commit names a store or topic."""
    return zlib.crc32(name.encode())


def facts_bytes(operators: Mapping[str, NamedOperator]) -> int:
    """Return the maximum size in bytes of facts with these operators."""
    return len(encode_operators(operators)) + len(encode_details(operators)) + _REST_BYTES


def inputs_digest(topics: Iterable[str]) -> int:
    """Return a digest of a set of topics, never 0.

    >>> inputs_digest(["b", "a"]) == inputs_digest({"a", "b"}) != inputs_digest(["a"])
    True
    """
    return zlib.crc32("\n".join(sorted(set(topics))).encode()) or 1
