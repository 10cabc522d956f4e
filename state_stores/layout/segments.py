"""Disk keys of window and session stores: time segment first, then the key. Pure.

    window:   segment(8) key start(8) seq(4)   changelog: key start(8) seq(4)
    session:  segment(8) key end(8) start(8)   changelog: key end(8) start(8)

The changelog keys are Kafka's WindowKeySchema and SessionKeySchema; numbers are big-endian. The
segment is the row's time (window start or session end) divided by the segment interval. One range
delete expires it.
"""

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from tidewheel.state_stores.spec import StoreKind, StoreSpec

_SEGMENT: Final = struct.Struct(">Q")
_TIME: Final = struct.Struct(">Q")
_WINDOW_TAIL: Final = struct.Struct(">QI")
_SESSION_TAIL: Final = struct.Struct(">QQ")

_NEGATIVE: Final = 0x80

SEGMENT_BYTES: Final = _SEGMENT.size

#: Largest time of a row: one below the 64-bit maximum, because range ends encode time + 1.
TIME_MAX: Final = (1 << 63) - 2

#: Largest sequence number of a duplicate; the next is 0, as in Kafka Streams.
SEQ_MASK: Final = 0x7FFFFFFF


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """The layout of one store's rows; `tail` is the number of bytes after the key.

    >>> layout = SegmentLayout(interval_ms=60_000, retention_ms=100_000, tail=12)
    >>> layout.time_of(layout.window_key(b"a", 120_000, 7)), layout.key_of(layout.window_key(b"a", 120_000, 7))
    (120000, b'a')
    >>> layout.segment(120_000)
    2
    """

    interval_ms: int
    retention_ms: int
    tail: int
    kept_longer_ms: int = 0

    @classmethod
    def of(cls, spec: StoreSpec) -> "SegmentLayout":
        tail = _SESSION_TAIL if spec.kind is StoreKind.SESSION else _WINDOW_TAIL
        return cls(spec.segment_interval_ms, spec.retention_ms, tail.size, spec.kept_longer_ms)

    def segment(self, time: int) -> int:
        return time // self.interval_ms

    def prefix(self, segment: int) -> bytes:
        return _SEGMENT.pack(segment)

    def window_key(self, key: bytes, start: int, seq: int = 0) -> bytes:
        return _SEGMENT.pack(start // self.interval_ms) + key + _WINDOW_TAIL.pack(start, seq)

    def window_keys(
        self, keys: Iterable[bytes], starts: Sequence[int], seqs: Iterable[int]
    ) -> list[bytes]:
        """Return the disk keys of many windows' rows.

        >>> layout = SegmentLayout(interval_ms=60_000, retention_ms=100_000, tail=12)
        >>> layout.window_keys([b"a", b"b"], [7, 70_000], [1, 2]) == [layout.window_key(b"a", 7, 1), layout.window_key(b"b", 70_000, 2)]
        True
        """
        segments = [start // self.interval_ms for start in starts]
        prefixes = {segment: _SEGMENT.pack(segment) for segment in set(segments)}
        tails = map(_WINDOW_TAIL.pack, starts, seqs)
        return [
            prefix + key + tail
            for prefix, key, tail in zip(
                map(prefixes.__getitem__, segments), keys, tails, strict=True
            )
        ]

    def session_key(self, key: bytes, start: int, end: int) -> bytes:
        return _SEGMENT.pack(end // self.interval_ms) + key + _SESSION_TAIL.pack(end, start)

    def disk_key(self, changelog_key: bytes) -> bytes:
        (time,) = _TIME.unpack_from(changelog_key, len(changelog_key) - self.tail)
        return _SEGMENT.pack(time // self.interval_ms) + changelog_key

    def is_row(self, changelog_key: bytes) -> bool:
        tail = self.tail
        if len(changelog_key) < tail or changelog_key[-tail] >= _NEGATIVE:
            return False
        return tail == _WINDOW_TAIL.size or changelog_key[-8:] <= changelog_key[-16:-8]

    def key_of(self, disk_key: bytes) -> bytes:
        return disk_key[SEGMENT_BYTES : -self.tail]

    def time_of(self, disk_key: bytes) -> int:
        time: int = _TIME.unpack_from(disk_key, len(disk_key) - self.tail)[0]
        return time

    @property
    def time_bytes(self) -> Callable[[bytes], bytes]:
        return itemgetter(slice(-self.tail, _TIME.size - self.tail))

    def times_of(self, disk_keys: Collection[bytes]) -> tuple[int, ...]:
        """Return the time of each of many rows.

        >>> layout = SegmentLayout(interval_ms=60_000, retention_ms=100_000, tail=12)
        >>> layout.times_of([layout.window_key(b"b", 7), layout.window_key(b"a", 500)])
        (7, 500)
        """
        times: tuple[int, ...] = struct.unpack(
            f">{len(disk_keys)}Q", b"".join(map(self.time_bytes, disk_keys))
        )
        return times

    def latest_time(self, disk_keys: Collection[bytes]) -> int:
        """Return the latest time of these rows; `disk_keys` must not be empty.

        >>> layout = SegmentLayout(interval_ms=60_000, retention_ms=100_000, tail=12)
        >>> layout.latest_time([layout.window_key(b"b", 7), layout.window_key(b"a", 500)])
        500
        """
        return int.from_bytes(max(map(self.time_bytes, disk_keys)))

    def segments_in(self, disk_keys: Iterable[bytes]) -> set[int]:
        """Return the segment numbers of these rows.

        >>> layout = SegmentLayout(interval_ms=60_000, retention_ms=100_000, tail=12)
        >>> layout.segments_in([layout.window_key(b"b", 7), layout.window_key(b"a", 60_500)])
        {0, 1}
        """
        prefix = itemgetter(slice(SEGMENT_BYTES))
        return set(map(int.from_bytes, set(map(prefix, disk_keys))))

    def segment_of(self, disk_key: bytes) -> int:
        segment: int = _SEGMENT.unpack_from(disk_key)[0]
        return segment

    def session_start_of(self, disk_key: bytes) -> int:
        start: int = _TIME.unpack_from(disk_key, len(disk_key) - _TIME.size)[0]
        return start

    def session_times_of(self, disk_key: bytes) -> tuple[int, int]:
        end, start = _SESSION_TAIL.unpack_from(disk_key, len(disk_key) - _SESSION_TAIL.size)
        return start, end

    @staticmethod
    def sessions_of(disk_keys: Collection[bytes]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the starts of many sessions, and their ends.

        >>> layout = SegmentLayout(interval_ms=60_000, retention_ms=100_000, tail=16)
        >>> layout.sessions_of([layout.session_key(b"b", 7, 9), layout.session_key(b"a", 3, 5)])
        ((7, 3), (9, 5))
        """
        tails = b"".join(map(itemgetter(slice(-_SESSION_TAIL.size, None)), disk_keys))
        times: tuple[int, ...] = struct.unpack(f">{2 * len(disk_keys)}Q", tails)
        return times[1::2], times[::2]

    def seq_of(self, disk_key: bytes) -> int:
        return int.from_bytes(disk_key[-4:])

    def live_from_ms(self, observed_ms: int) -> int:
        return max(observed_ms - self.retention_ms + 1, 0)

    def first_live_segment(self, observed_ms: int) -> int:
        return self.segment(self.live_from_ms(observed_ms - self.kept_longer_ms))

    def first_restored(self, observed_ms: int, slowest_ms: int | None) -> int:
        """Return the first segment that a restore keeps, if `observed_ms` is its latest row's time.

        `slowest_ms` is the time of the slowest key range, which needs older segments; -1 if
        unknown, None if no range is behind.

        >>> layout = SegmentLayout(interval_ms=60_000, retention_ms=60_000, tail=12)
        >>> layout.first_restored(600_000, None), layout.first_restored(600_000, 180_000), layout.first_restored(600_000, -1)
        (9, 2, 0)
        """
        return self.first_live_segment(
            observed_ms if slowest_ms is None else min(observed_ms, slowest_ms)
        )

    def key_bounds(self, segment: int, key: bytes, low: int, high: int) -> tuple[bytes, bytes]:
        """Return bounds (first, end) of a key's rows; rows of longer keys may be in between."""
        begin = segment * self.interval_ms
        prefix = _SEGMENT.pack(segment) + key
        last = min(high, begin + self.interval_ms - 1)
        return prefix + _TIME.pack(max(low, begin)), prefix + _TIME.pack(last + 1)

    def key_span(self, key: bytes, low: int, high: int) -> tuple[bytes, bytes]:
        interval = self.interval_ms
        first = _SEGMENT.pack(low // interval) + key + _TIME.pack(low)
        return first, _SEGMENT.pack(high // interval) + key + _TIME.pack(high + 1)

    def segments_of(
        self, segments: Sequence[int], low: int, high: int, *, reverse: bool
    ) -> Sequence[int]:
        if not segments:
            return segments
        first, last = low // self.interval_ms, high // self.interval_ms
        selected = segments[bisect_left(segments, first) : bisect_right(segments, last)]
        return selected[::-1] if reverse else selected

    def range_bounds(self, segment: int, lo: bytes | None, hi: bytes | None) -> tuple[bytes, bytes]:
        prefix = _SEGMENT.pack(segment)
        if hi is None:
            return prefix + (lo or b""), _SEGMENT.pack(segment + 1)
        # A prefix of `hi` is a smaller key, but its rows may follow those of `hi`.
        tail = b"\xff" * self.tail
        last = max(hi[:length] + tail for length in range(len(hi) + 1))
        return prefix + (lo or b""), prefix + last + b"\x00"

    def row_bytes(self, key: bytes) -> int:
        return SEGMENT_BYTES + len(key) + self.tail


def check_bounds(
    store: str, low: object, high: object, names: tuple[str, str] = ("from_ms", "to_ms")
) -> None:
    if type(low) is int and type(high) is int:
        return
    name, bound = (names[0], low) if type(low) is not int else (names[1], high)
    raise ValueError(
        f"store {store}: {name}={bound!r} is no time; it must be an int of milliseconds since the epoch"
    )


def check_time(store: str, time: object, noun: str) -> int:
    if type(time) is not int or not 0 <= time <= TIME_MAX:
        raise ValueError(
            f"store {store}: {noun} {time!r} is no timestamp; it must be an int of milliseconds since the epoch"
        )
    return time
