"""Commit facts: properties of topology and topics that a later start compares. Pure."""

import struct
import zlib
from collections.abc import Iterable, Mapping
from typing import Final, Self

import msgspec


class CommitFacts(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Facts about one input partition and its task, stored with the committed offset.

    Attributes:
        first_partitions: Partitions of the topic when the application first read it; -1 if unknown.
            Partitions from there on appeared later, and are read from their beginning.
        inputs: Digest of the topics that the task reads (`inputs_digest`); 0 if unknown.
        accepted: True if the user accepted an offset that this application had not committed
            (`accept_offsets`).
        operators: Digest of each generated name, with its operator's fingerprint.
        details: Finer fingerprints in the same order; empty in commits of earlier versions.
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
        """Return the facts in `data`; defaults if unreadable."""
        if not data:
            return cls()
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except (msgspec.MsgspecError, RecursionError):
            return cls()


_ENCODER: Final = msgspec.msgpack.Encoder()
_PAIR: Final = struct.Struct(">II")
_NAMES_MAX: Final = 64
_DETAIL: Final = struct.Struct(">I")
#: Maximum encoded bytes of all facts except `operators` and `details`.
_FIXED_FACTS_BYTES: Final = 27


class NamedOperator(msgspec.Struct, frozen=True, kw_only=True):
    """Operator with a generated name, which a changed topology may give to another operator.

    Attributes:
        fingerprint: Hash of its kind, input, and the names and constants in its functions.
        details: Hash that also covers the operations of its functions.
        location: The user's line that created it.
    """

    fingerprint: int
    details: int = 0
    location: str = ""


def encode_operators(operators: Mapping[str, NamedOperator]) -> bytes:
    first = sorted(operators.items())[:_NAMES_MAX]
    return b"".join(_PAIR.pack(name_digest(name), operator.fingerprint) for name, operator in first)


def encode_details(operators: Mapping[str, NamedOperator]) -> bytes:
    first = sorted(operators.items())[:_NAMES_MAX]
    return b"".join(_DETAIL.pack(operator.details) for _, operator in first)


def decode_operators(data: bytes) -> dict[int, int]:
    if len(data) % _PAIR.size:
        return {}
    return dict(_PAIR.iter_unpack(data))


def decode_details(facts: CommitFacts) -> dict[int, int]:
    """Return `details` fingerprints by name digest; empty if the commit has none."""
    names = decode_operators(facts.operators)
    if len(facts.details) != _DETAIL.size * len(names):
        return {}
    return dict(
        zip(names, (detail for (detail,) in _DETAIL.iter_unpack(facts.details)), strict=True)
    )


def name_digest(name: str) -> int:
    return zlib.crc32(name.encode())


def facts_bytes(operators: Mapping[str, NamedOperator]) -> int:
    return len(encode_operators(operators)) + len(encode_details(operators)) + _FIXED_FACTS_BYTES


def inputs_digest(topics: Iterable[str]) -> int:
    """Return a digest of a set of topic names, never 0 (unknown).

    >>> inputs_digest(["b", "a"]) == inputs_digest({"a", "b"}) != inputs_digest(["a"])
    True
    """
    return zlib.crc32("\n".join(sorted(set(topics))).encode()) or 1
