"""What a store is: its name, kind and settings, as one value that the DSL makes and the tasks open."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from tidewheel.state_stores.ports import SerdePort


class StoreKind(StrEnum):
    """What a store holds. A session store's values have timestamps too."""

    KEY_VALUE = "key_value"
    TIMESTAMPED_KEY_VALUE = "timestamped_key_value"
    VERSIONED = "versioned"
    WINDOW = "window"
    TIMESTAMPED_WINDOW = "timestamped_window"
    SESSION = "session"
    CUSTOM = "custom"


#: The kinds whose rows lie in segments of time, which expire as a whole.
SEGMENTED_KINDS: Final = frozenset(
    (StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW, StoreKind.SESSION)
)

#: The kinds whose rows may keep headers (Kafka Streams' header-aware stores); a store bounded by use or time can't.
HEADERS_KINDS: Final = frozenset(
    (StoreKind.TIMESTAMPED_KEY_VALUE, StoreKind.TIMESTAMPED_WINDOW, StoreKind.SESSION)
)

#: Kafka Streams' shortest segment (Stores.defaultSegmentInterval).
_LEAST_SEGMENT_MS: Final = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpec:
    """A store of a topology.

    Attributes:
        name: Name of the store, of its column family and (with the application id) of its changelog topic.
        kind: What it holds.
        key_serde: Serde of keys.
        value_serde: Serde of values.
        persistent: Kept in RocksDB; otherwise in memory and restored from the changelog at every start.
        caching: Updates are held back from downstream until a commit or until the cache is full.
        logging: Changes are written to a changelog topic; without one a lost disk loses the store.
        changelog_config: Topic settings for the changelog.
        changelog_headers: Headers of every record in the changelog (name, value).
        source_topic: The input topic that the store is restored from; it has no changelog then.
        retention_ms: Window and session stores: how long a row lives, counted from the window's start (a session's end)
            to the largest one the store has seen.
        kept_longer_ms: Window and session stores: how much longer than it lives a row stays on disk and is restored. Where
            key ranges share a task a slow one may still need what a fast one has left behind.
        window_size_ms: Window stores: the length of a window.
        window_end: Window stores: the end of the window that begins at a start, where `window_size_ms` doesn't tell.
        retain_duplicates: Window stores: several values of one key and start stand beside each other.
        history_retention_ms: Versioned stores: how far back a version may be read, and written.
        max_entries: The store keeps this many keys, those used last; None for all.
        ttl_ms: How long a key lives after the timestamp of the record that set it, in stream time; None for ever.
        make: Custom stores: makes the user's object, a `StateStore`.
        internal_rows: Why nobody but the store's operator can name its rows by a key; empty where the user's keys do.
        keeps_headers: Each row has the headers of the record that set it, here and in the changelog.
    """

    name: str
    kind: StoreKind
    key_serde: SerdePort
    value_serde: SerdePort
    persistent: bool = True
    caching: bool = False
    logging: bool = True
    changelog_config: Mapping[str, str] = field(default_factory=dict[str, str])
    changelog_headers: tuple[tuple[str, bytes], ...] = ()
    source_topic: str | None = None
    retention_ms: int = 0
    kept_longer_ms: int = 0
    window_size_ms: int = 0
    window_end: Callable[[int], int] | None = None
    retain_duplicates: bool = False
    history_retention_ms: int = 0
    max_entries: int | None = None
    ttl_ms: int | None = None
    make: Callable[[], Any] | None = None
    internal_rows: str = ""
    keeps_headers: bool = False

    @property
    def may_keep_headers(self) -> bool:
        """Return whether there is such a store that keeps headers, as Kafka Streams has one."""
        bounded = self.max_entries is not None or self.ttl_ms is not None
        return self.kind in HEADERS_KINDS and not bounded

    @property
    def has_time(self) -> bool:
        """Return whether its rows end with time, so that a time is kept with them."""
        timed = self.kind in SEGMENTED_KINDS or self.kind is StoreKind.VERSIONED
        return timed or self.ttl_ms is not None

    @property
    def segment_interval_ms(self) -> int:
        """Return how long a segment of a window or session store is (Kafka Streams' Stores.defaultSegmentInterval)."""
        return max(self.retention_ms // 2, _LEAST_SEGMENT_MS)
