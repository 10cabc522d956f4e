"""Store specification, created by the DSL and opened by tasks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from tidewheel.state_stores.ports import SerdePort


class StoreKind(StrEnum):
    KEY_VALUE = "key_value"
    TIMESTAMPED_KEY_VALUE = "timestamped_key_value"
    VERSIONED = "versioned"
    WINDOW = "window"
    TIMESTAMPED_WINDOW = "timestamped_window"
    SESSION = "session"
    CUSTOM = "custom"


#: Kinds whose rows expire by time segment.
SEGMENTED_KINDS: Final = frozenset(
    (StoreKind.WINDOW, StoreKind.TIMESTAMPED_WINDOW, StoreKind.SESSION)
)

#: Kinds that can store record headers, unless the store has a TTL or an entry limit.
HEADERS_KINDS: Final = frozenset(
    (StoreKind.TIMESTAMPED_KEY_VALUE, StoreKind.TIMESTAMPED_WINDOW, StoreKind.SESSION)
)

#: Kafka Streams' shortest segment (Stores.defaultSegmentInterval), ms.
_LEAST_SEGMENT_MS: Final = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSpec:
    """A store of a topology.

    Attributes:
        persistent: RocksDB if True; else in memory, restored from the changelog at every start.
        caching: Keep updates in the record cache; forward each key's last at a commit or if full.
        source_topic: Input topic that replaces the changelog.
        retention_ms: Life of a row after its window's start or session's end, in store time.
        kept_longer_ms: Extra time an expired row stays on disk, for key ranges that lag behind.
        window_end: Computes a window's end from its start, for windows of varying length.
        max_entries: Number of most recently used keys to keep; None for all.
        ttl_ms: Life of a key in stream time after its record's timestamp; None for unlimited.
        internal_rows: Reason why users cannot address rows by key; empty if they can.
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
        bounded = self.max_entries is not None or self.ttl_ms is not None
        return self.kind in HEADERS_KINDS and not bounded

    @property
    def has_time(self) -> bool:
        timed = self.kind in SEGMENTED_KINDS or self.kind is StoreKind.VERSIONED
        return timed or self.ttl_ms is not None

    @property
    def segment_interval_ms(self) -> int:
        return max(self.retention_ms // 2, _LEAST_SEGMENT_MS)
