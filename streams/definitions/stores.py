"""`Stores`: builders of stores for user processors."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar, Unpack

from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.state_stores.stores.custom_store import StateStore
from tidewheel.streams.definitions.materialized import StoreBuilder
from tidewheel.streams.definitions.names import check_name, where
from tidewheel.streams.definitions.store_options import (
    check_changelog_config,
    check_flags,
    check_makes_stores,
    check_max_entries,
    checked_serde,
    optional_ms,
)
from tidewheel.streams.durations import to_ms
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.serdes import SerdeLike
from tidewheel.streams.user_functions import caller_location
from tidewheel.tasks.durations import Duration

K = TypeVar("K")
V = TypeVar("V")


class StoreOptions(TypedDict, total=False):
    """Options of every store of `Stores`.

    Attributes:
        persistent: Use RocksDB (default); otherwise memory, restored from the changelog at each
            start.
        caching: Buffer changelog writes until a commit.
        logging: Write changes to a changelog topic (default). Without one, a lost disk loses the
            store.
    """

    persistent: bool
    caching: bool
    logging: bool
    changelog_config: Mapping[str, str] | None


class Stores:
    """Builders of stores for processors, which read them with `context.get_state_store(name)`.

    Kafka Streams' Stores and StoreBuilder in one. Durations are `datetime.timedelta`, text
    ("30s") or int milliseconds. Methods raise `TopologyError` with the caller's line for an invalid name, serde or
    duration, and for conflicting options.

    >>> Stores.key_value("seen", key_serde=str, value_serde=int).spec.name
    'seen'
    """

    @staticmethod
    def key_value(
        name: str,
        *,
        key_serde: SerdeLike[K],
        value_serde: SerdeLike[V],
        ttl: Duration | None = None,
        **options: Unpack[StoreOptions],
    ) -> StoreBuilder:
        """Return a store of keys and values.

        Args:
            ttl: Lifetime of a key after its record's timestamp, in stream time; None: unlimited.

        >>> Stores.key_value("totals", key_serde=str, value_serde=float).spec.kind.value
        'key_value'
        >>> Stores.key_value("seen", key_serde=str, value_serde=int, ttl=60_000).spec.ttl_ms
        60000
        """
        context = _StoreCall.by("Stores.key_value")
        return context.store(
            StoreKind.KEY_VALUE,
            name,
            (key_serde, value_serde),
            options,
            ttl_ms=optional_ms(ttl, "ttl", context.text),
        )

    @staticmethod
    def timestamped_key_value(
        name: str,
        *,
        key_serde: SerdeLike[K],
        value_serde: SerdeLike[V],
        ttl: Duration | None = None,
        **options: Unpack[StoreOptions],
    ) -> StoreBuilder:
        """Return a store of keys and `ValueAndTimestamp`; options as in `key_value`.

        >>> Stores.timestamped_key_value("last", key_serde=str, value_serde=str).spec.kind.value
        'timestamped_key_value'
        """
        context = _StoreCall.by("Stores.timestamped_key_value")
        return context.store(
            StoreKind.TIMESTAMPED_KEY_VALUE,
            name,
            (key_serde, value_serde),
            options,
            ttl_ms=optional_ms(ttl, "ttl", context.text),
        )

    @staticmethod
    def timestamped_key_value_with_headers(
        name: str,
        *,
        key_serde: SerdeLike[K],
        value_serde: SerdeLike[V],
        **options: Unpack[StoreOptions],
    ) -> StoreBuilder:
        """Return a store of keys and `ValueTimestampHeaders` (KIP-1271); options as in `key_value`.

        As in Kafka Streams, changelog records carry the row's headers.

        >>> Stores.timestamped_key_value_with_headers("last", key_serde=str, value_serde=str).spec.keeps_headers
        True
        """
        return _StoreCall.by("Stores.timestamped_key_value_with_headers").store(
            StoreKind.TIMESTAMPED_KEY_VALUE,
            name,
            (key_serde, value_serde),
            options,
            keeps_headers=True,
        )

    @staticmethod
    def lru(
        name: str,
        *,
        max_entries: int,
        key_serde: SerdeLike[K],
        value_serde: SerdeLike[V],
        **options: Unpack[StoreOptions],
    ) -> StoreBuilder:
        """Return a key-value store of the most recently used keys (Kafka Streams' `Stores.lruMap`).

        `get` and `put` count as use of a key; a put beyond `max_entries` deletes the least recently
        used key, also from the changelog. A restart forgets uses by `get`: keys are then
        ordered by the timestamps of their last puts. The store is in memory, unless
        `persistent=True`.

        Args:
            max_entries: Maximum number of keys, at least 1. All keys are in memory even with
                `persistent=True`.

        >>> Stores.lru("recent", max_entries=1_000, key_serde=str, value_serde=str).spec.max_entries
        1000
        """
        context = _StoreCall.by("Stores.lru")
        check_max_entries(max_entries, context.text)
        options.setdefault("persistent", False)
        return context.store(
            StoreKind.KEY_VALUE, name, (key_serde, value_serde), options, max_entries=max_entries
        )

    @staticmethod
    def versioned(
        name: str,
        *,
        history_retention: Duration,
        key_serde: SerdeLike[K],
        value_serde: SerdeLike[V],
        **options: Unpack[StoreOptions],
    ) -> StoreBuilder:
        """Return a store of the versions of each key (KIP-889): a `VersionedKeyValueStore`.

        Args:
            history_retention: Age limit for reading and writing versions, counted from the largest
                timestamp put. The latest version never expires.
            **options: See `StoreOptions`; a versioned store has no cache.

        >>> from datetime import timedelta
        >>> prices = Stores.versioned("prices", history_retention=timedelta(hours=1), key_serde=str, value_serde=float)
        >>> prices.spec.history_retention_ms
        3600000
        """
        context = _StoreCall.by("Stores.versioned")
        if options.get("caching"):
            raise TopologyError(
                f"{context.text}: a versioned store has no cache; leave caching= out"
            )
        history_ms = to_ms(history_retention, f"{context.text}: history_retention")
        return context.store(
            StoreKind.VERSIONED,
            name,
            (key_serde, value_serde),
            options,
            history_retention_ms=history_ms,
        )

    @staticmethod
    def window(
        name: str,
        *,
        retention: Duration,
        window_size: Duration,
        key_serde: SerdeLike[K],
        value_serde: SerdeLike[V],
        retain_duplicates: bool = False,
        **options: Unpack[StoreOptions],
    ) -> StoreBuilder:
        """Return a store of values by key and window start: a `WindowStore`.

        Args:
            retention: Rows expire when their window start is this much older than the largest start
                put; at least `window_size`.
            window_size: Window length, from which range results get window ends.
            retain_duplicates: Keep several values of one key and start; deletes are then
                impossible.

        >>> clicks = Stores.window("clicks", retention=3_600_000, window_size=60_000, key_serde=str, value_serde=int)
        >>> clicks.spec.retention_ms
        3600000
        """
        return _window_store(
            _StoreCall.by("Stores.window"),
            StoreKind.WINDOW,
            name,
            (key_serde, value_serde),
            (retention, window_size),
            options,
            retain_duplicates=retain_duplicates,
        )

    @staticmethod
    def timestamped_window(
        name: str,
        *,
        retention: Duration,
        window_size: Duration,
        key_serde: SerdeLike[K],
        value_serde: SerdeLike[V],
        **options: Unpack[StoreOptions],
    ) -> StoreBuilder:
        """Return a window store whose values are `ValueAndTimestamp`: a `TimestampedWindowStore`.

        >>> last = Stores.timestamped_window("last", retention=10, window_size=5, key_serde=str, value_serde=int)
        >>> last.spec.kind.value
        'timestamped_window'
        """
        return _window_store(
            _StoreCall.by("Stores.timestamped_window"),
            StoreKind.TIMESTAMPED_WINDOW,
            name,
            (key_serde, value_serde),
            (retention, window_size),
            options,
        )

    @staticmethod
    def timestamped_window_with_headers(
        name: str,
        *,
        retention: Duration,
        window_size: Duration,
        key_serde: SerdeLike[K],
        value_serde: SerdeLike[V],
        **options: Unpack[StoreOptions],
    ) -> StoreBuilder:
        """Return a window store whose values are `ValueTimestampHeaders` (KIP-1271).

        >>> last = Stores.timestamped_window_with_headers(
        ...     "last", retention=10, window_size=5, key_serde=str, value_serde=int
        ... )
        >>> last.spec.kind.value, last.spec.keeps_headers
        ('timestamped_window', True)
        """
        return _window_store(
            _StoreCall.by("Stores.timestamped_window_with_headers"),
            StoreKind.TIMESTAMPED_WINDOW,
            name,
            (key_serde, value_serde),
            (retention, window_size),
            options,
            keeps_headers=True,
        )

    @staticmethod
    def session(
        name: str,
        *,
        retention: Duration,
        key_serde: SerdeLike[K],
        value_serde: SerdeLike[V],
        **options: Unpack[StoreOptions],
    ) -> StoreBuilder:
        """Return a store of values by key and session: a `SessionStore`.

        Args:
            retention: Rows expire when their session's end is this much older than the largest end
                put.

        >>> Stores.session("visits", retention=60_000, key_serde=str, value_serde=int).spec.kind.value
        'session'
        """
        context = _StoreCall.by("Stores.session")
        return context.session(name, (key_serde, value_serde), retention, options)

    @staticmethod
    def session_with_headers(
        name: str,
        *,
        retention: Duration,
        key_serde: SerdeLike[K],
        value_serde: SerdeLike[V],
        **options: Unpack[StoreOptions],
    ) -> StoreBuilder:
        """Return a session store whose values are `AggregationWithHeaders` (KIP-1271).

        Options as in `session`.

        >>> visits = Stores.session_with_headers("visits", retention=60_000, key_serde=str, value_serde=int)
        >>> visits.spec.kind.value, visits.spec.keeps_headers
        ('session', True)
        """
        context = _StoreCall.by("Stores.session_with_headers")
        return context.session(
            name, (key_serde, value_serde), retention, options, keeps_headers=True
        )

    @staticmethod
    def custom(
        name: str,
        factory: Callable[[], StateStore],
        *,
        logging: bool = True,
        changelog_config: Mapping[str, str] | None = None,
    ) -> StoreBuilder:
        """Return a store of your own class, a `StateStore`. Each task gets its own object.

        The application needs `num_stream_threads=1`, else its start fails. More threads would
        process records ahead of a commit, but a custom store treats all its writes as committed.

        Args:
            factory: The class, or a function that returns a new object at each call.
            logging: Write changes to a changelog topic. Without it `log_change` only marks the task
                as changed, and lost state is not restored.

        >>> class Nothing(StateStore):
        ...     def restore(self, records):
        ...         pass
        >>> Stores.custom("nothing", Nothing).spec.kind.value
        'custom'
        """
        context = _StoreCall.by("Stores.custom")
        check_makes_stores(factory, context.text)
        options = StoreOptions(persistent=False, logging=logging, changelog_config=changelog_config)
        return context.store(StoreKind.CUSTOM, name, (bytes, bytes), options, make=factory)


@dataclass(frozen=True, slots=True)
class _StoreCall:
    text: str
    location: str

    @classmethod
    def by(cls, what: str) -> "_StoreCall":
        location = caller_location()
        return cls(where(what, location), location)

    def store(
        self,
        kind: StoreKind,
        name: str,
        serdes: tuple[SerdeLike[Any], SerdeLike[Any]],
        options: StoreOptions,
        **limits: Any,
    ) -> StoreBuilder:
        unknown = sorted(set(options).difference(StoreOptions.__annotations__))
        if unknown:
            raise TopologyError(
                f"{self.text}: there is no option {', '.join(unknown)}; every kind of store takes "
                f"{', '.join(StoreOptions.__annotations__)}"
            )
        changelog_config = options.get("changelog_config")
        settings: Mapping[str, str] = {} if changelog_config is None else changelog_config
        persistent = options.get("persistent", True)
        caching, logging = options.get("caching", False), options.get("logging", True)
        check_flags(self.text, persistent=persistent, caching=caching, logging=logging)
        check_changelog_config(settings, self.text, logging=logging)
        spec = StoreSpec(
            name=check_name(name, "store", self.text),
            kind=kind,
            key_serde=checked_serde(serdes[0], "key_serde", self.text),
            value_serde=checked_serde(serdes[1], "value_serde", self.text),
            persistent=persistent,
            caching=caching,
            logging=logging,
            changelog_config=dict(settings),
            **limits,
        )
        return StoreBuilder(spec=spec, location=self.location)

    def session(
        self,
        name: str,
        serdes: tuple[SerdeLike[Any], SerdeLike[Any]],
        retention: Duration,
        options: StoreOptions,
        *,
        keeps_headers: bool = False,
    ) -> StoreBuilder:
        return self.store(
            StoreKind.SESSION,
            name,
            serdes,
            options,
            retention_ms=to_ms(retention, f"{self.text}: retention", minimum_ms=1),
            keeps_headers=keeps_headers,
        )


def _window_store(
    context: _StoreCall,
    kind: StoreKind,
    name: str,
    serdes: tuple[SerdeLike[Any], SerdeLike[Any]],
    durations: tuple[Duration, Duration],
    options: StoreOptions,
    *,
    retain_duplicates: bool = False,
    keeps_headers: bool = False,
) -> StoreBuilder:
    check_flags(context.text, retain_duplicates=retain_duplicates)
    window_size_ms = to_ms(durations[1], f"{context.text}: window_size")
    retention_ms = to_ms(durations[0], f"{context.text}: retention", minimum_ms=1)
    if retention_ms < window_size_ms:
        raise TopologyError(
            f"{context.text}: retention={durations[0]!r} is shorter than a window of {window_size_ms} ms; "
            "give at least window_size"
        )
    if retain_duplicates and options.get("caching"):
        raise TopologyError(
            f"{context.text}: a store that retains duplicates has no cache, which would keep the last one only; "
            "leave caching= out"
        )
    return context.store(
        kind,
        name,
        serdes,
        options,
        retention_ms=retention_ms,
        window_size_ms=window_size_ms,
        retain_duplicates=retain_duplicates,
        keeps_headers=keeps_headers,
    )
