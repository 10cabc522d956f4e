"""In-memory index of a window or session store's rows by key.

It is complete for segments created after the index; in older ones it has only keys searched before.
Over its budget it drops the oldest segments.
"""

import struct
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from tidewheel.state_stores.layout.segments import SEGMENT_BYTES, SegmentLayout

#: Estimated bytes of an index entry besides its disk key, and of each key.
_ROW_BYTES = 64
_KEY_BYTES = 250

#: Big-endian times in disk keys sort like numbers.
_TIME: Final = struct.Struct(">Q")
_pack_time: Final = _TIME.pack

#: A key with more rows in one segment is not indexed: its reads scan the disk.
_ROWS_MAX = 4_096


class DirtyIndex:
    """Uncommitted disk keys by key, in order, updated lazily.

    `part` is the key's slice of a disk key; `since(n)` returns the dirty keys after the first n.
    """

    def __init__(self, part: slice, since: Callable[[int], list[bytes]]) -> None:
        self._part = part
        self._since = since
        self._by_key: dict[bytes, list[bytes]] = {}
        self._seen = 0

    def of(self, key: bytes, dirty_count: int) -> list[bytes] | None:
        """Return the key's uncommitted disk keys in order, None without any; do not modify it."""
        if dirty_count > self._seen:
            self._update(dirty_count)
        return self._by_key.get(key)

    def _update(self, dirty_count: int) -> None:
        by_key, part = self._by_key, self._part
        for disk_key in self._since(self._seen):
            key = disk_key[part]
            key_rows = by_key.get(key)
            if key_rows is None:
                by_key[key] = [disk_key]
            else:
                insort(key_rows, disk_key)
        self._seen = dirty_count

    def clear(self) -> None:
        self._by_key = {}
        self._seen = 0


class _Segment:
    __slots__ = ("complete", "many", "rows", "scanned", "size_bytes")

    def __init__(self, *, complete: bool) -> None:
        #: True if keys not in `rows` have no rows in this segment.
        self.complete = complete
        self.rows: dict[bytes, list[bytes]] = {}
        self.scanned: set[bytes] = set()
        self.many: set[bytes] = set()
        self.size_bytes = 0


class RowIndex:
    """Disk keys of a store's rows by segment and key.

    `find(segment, key, limit)` reads up to `limit` disk keys of a key from the store.
    """

    def __init__(
        self,
        layout: SegmentLayout,
        budget_bytes: int,
        on_disk: Iterable[int],
        find: Callable[[int, bytes, int], list[bytes]],
    ) -> None:
        self._layout = layout
        self._time = layout.time_bytes
        self._key = slice(SEGMENT_BYTES, -layout.tail)
        self._budget_bytes = budget_bytes
        self._find = find
        self._segments = {number: _Segment(complete=False) for number in sorted(on_disk)}
        self._order = list(self._segments)
        self._size_bytes = 0

    def add(self, disk_keys: Iterable[bytes]) -> None:
        for disk_key in disk_keys:
            self.put(disk_key)
        self._shed()

    def put(self, disk_key: bytes) -> None:
        segment = self._segment_of(disk_key[:SEGMENT_BYTES])
        self._grow(segment, _insert(segment, disk_key[self._key], disk_key))

    def _segment_of(self, prefix: bytes) -> _Segment:
        number = int.from_bytes(prefix)
        segment = self._segments.get(number)
        if segment is None:
            # Complete: it was not on disk at the start, and only this process writes.
            segment = self._segments[number] = _Segment(complete=True)
            insort(self._order, number)
        return segment

    def change(self, rows: Mapping[bytes, object]) -> None:
        segments: dict[bytes, _Segment] = {}
        removed: list[bytes] = []
        key_part, grown = self._key, 0
        for disk_key, value in rows.items():
            if value is None:
                removed.append(disk_key)
                continue
            prefix = disk_key[:SEGMENT_BYTES]
            segment = segments.get(prefix)
            if segment is None:
                segment = segments[prefix] = self._segment_of(prefix)
            key = disk_key[key_part]
            key_rows = segment.rows.get(key)
            if key_rows is not None and disk_key > key_rows[-1] and len(key_rows) < _ROWS_MAX:
                key_rows.append(disk_key)
                size_bytes = len(disk_key) + _ROW_BYTES
            else:
                size_bytes = _insert(segment, key, disk_key)
            segment.size_bytes += size_bytes
            grown += size_bytes
        self._size_bytes += grown
        # Removals go last: a key whose only row is replaced stays in the dictionary.
        for disk_key in removed:
            self.remove(disk_key)

    def remove(self, disk_key: bytes) -> None:
        segment = self._segments.get(int.from_bytes(disk_key[:SEGMENT_BYTES]))
        if segment is None:
            return
        key = disk_key[self._key]
        rows = segment.rows.get(key)
        if rows is None:
            return
        if len(rows) > 1:
            place = bisect_left(rows, disk_key)
            if place < len(rows) and rows[place] == disk_key:
                del rows[place]
                self._grow(segment, -len(disk_key) - _ROW_BYTES)
        elif rows[0] == disk_key:
            del segment.rows[key]
            self._grow(segment, -len(disk_key) - _ROW_BYTES - len(key) - _KEY_BYTES)

    def expire(self, first_live_segment: int) -> None:
        while self._order and self._order[0] < first_live_segment:
            self._size_bytes -= self._segments.pop(self._order.pop(0)).size_bytes

    def _grow(self, segment: _Segment, size_bytes: int) -> None:
        segment.size_bytes += size_bytes
        self._size_bytes += size_bytes

    def of(self, key: bytes, low: int, high: int) -> list[bytes] | None:
        """Return disk keys with low <= time <= high in order; None if the key is not indexed."""
        order, interval, time = self._order, self._layout.interval_ms, self._time
        lowest, highest = low // interval, high // interval
        rows: list[bytes] = []
        for number in order[bisect_left(order, lowest) :]:
            if number > highest:
                break
            segment = self._segments[number]
            if not segment.complete and key not in segment.scanned:
                self._look_up(number, segment, key)
            key_rows = segment.rows.get(key)
            if key_rows is None:
                if key in segment.many:
                    return None
                continue
            start, stop = 0, len(key_rows)
            if number == lowest:
                start = bisect_left(key_rows, _pack_time(low), key=time)
            if number == highest:
                stop = bisect_right(key_rows, _pack_time(high), key=time)
            rows += key_rows[start:stop]
        return rows

    def of_each(
        self, keys: Sequence[bytes], lows: Sequence[int], highs: Sequence[int]
    ) -> Sequence[list[bytes] | None]:
        """Return `of` for each key; `keys` must not be empty, and times must be >= 0."""
        order, interval = self._order, self._layout.interval_ms
        first, last = min(lows) // interval, max(highs) // interval
        numbers = order[bisect_left(order, first) : bisect_right(order, last)]
        segments = [self._segments[number] for number in numbers]
        for number, segment in zip(numbers, segments, strict=True):
            if not segment.complete:
                self._look_up_all(number, segment, zip(keys, lows, highs, strict=True))
        if any(segment.many for segment in segments):
            return list(map(self.of, keys, lows, highs))
        time, before_time = self._time, slice(-self._layout.tail)
        behind_time = b"\xff" * (self._layout.tail - _TIME.size)
        packed_lows, packed_highs = list(map(_pack_time, lows)), list(map(_pack_time, highs))
        rows_by_key: list[list[bytes]] = [[] for _ in keys]
        for segment in segments:
            rows_of_key = map(segment.rows.get, keys)
            for rows, key_rows, low, high in zip(
                rows_by_key, rows_of_key, packed_lows, packed_highs, strict=True
            ):
                if key_rows is None:
                    continue
                latest = time(key_rows[-1])
                if latest < low:
                    continue
                if latest <= high and (len(key_rows) == 1 or time(key_rows[-2]) < low):
                    rows.append(key_rows[-1])
                elif latest <= high and time(key_rows[0]) >= low:
                    rows.extend(key_rows)
                else:
                    begin = key_rows[-1][before_time]
                    start = bisect_left(key_rows, begin + low)
                    stop = bisect_right(key_rows, begin + high + behind_time, start)
                    rows.extend(key_rows[start:stop])
        return rows_by_key

    def _look_up_all(
        self, number: int, segment: _Segment, wanted: Iterable[tuple[bytes, int, int]]
    ) -> None:
        interval, scanned = self._layout.interval_ms, segment.scanned
        begin, end = number * interval, (number + 1) * interval
        for key, low, high in wanted:
            if low < end and high >= begin and key not in scanned:
                self._look_up(number, segment, key)

    def _look_up(self, number: int, segment: _Segment, key: bytes) -> None:
        key_rows = self._find(number, key, _ROWS_MAX + 1)
        grown = len(key) + _KEY_BYTES - _forget(segment, key)
        segment.scanned.add(key)
        if len(key_rows) > _ROWS_MAX:
            segment.many.add(key)
        elif key_rows:
            segment.rows[key] = key_rows
            grown += _bytes_of(key, key_rows)
        self._grow(segment, grown)

    @property
    def is_full(self) -> bool:
        return self._size_bytes > self._budget_bytes

    def _shed(self) -> None:
        if not self.is_full:
            return
        for number in self._order:
            # Stop at 3/4 of the budget: the next rows fit. Keys in dropped segments cost new scans.
            if self._size_bytes <= self._budget_bytes * 3 // 4:
                return
            self._size_bytes -= self._segments[number].size_bytes
            self._segments[number] = _Segment(complete=False)


def _insert(segment: _Segment, key: bytes, disk_key: bytes) -> int:
    key_rows = segment.rows.get(key)
    if key_rows is None:
        if key in segment.many:
            return 0
        segment.rows[key] = [disk_key]
        return len(key) + _KEY_BYTES + len(disk_key) + _ROW_BYTES
    if disk_key > key_rows[-1]:
        key_rows.append(disk_key)
    else:
        place = bisect_left(key_rows, disk_key)
        if key_rows[place] == disk_key:
            return 0
        key_rows.insert(place, disk_key)
    if len(key_rows) > _ROWS_MAX:
        segment.many.add(key)
        return len(disk_key) + _ROW_BYTES - _forget(segment, key) + len(key) + _KEY_BYTES
    return len(disk_key) + _ROW_BYTES


def _forget(segment: _Segment, key: bytes) -> int:
    key_rows = segment.rows.pop(key, None)
    return 0 if key_rows is None else _bytes_of(key, key_rows)


def _bytes_of(key: bytes, key_rows: list[bytes]) -> int:
    return len(key) + _KEY_BYTES + len(key_rows) * (_ROW_BYTES + len(key_rows[0]))
