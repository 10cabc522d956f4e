"""`Materialized`: the options of a table's store, converted to a `StoreSpec`."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from types import NoneType
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, TypeVar, get_args

from tidewheel.state_stores.ports import SerdePort
from tidewheel.state_stores.spec import StoreKind, StoreSpec
from tidewheel.streams.definitions.names import check_name, where
from tidewheel.streams.definitions.store_options import (
    check_belongs,
    check_changelog_config,
    check_flags,
    check_max_entries,
    check_serde,
    optional_ms,
)
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.serdes import SerdeLike
from tidewheel.streams.user_functions import caller_location
from tidewheel.tasks.durations import Duration

# Type arguments of a `Materialized` without serdes. `Any` would replace a table's inferred key and
# value types in type checkers; `Never` keeps them.
if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    K = TypeVarWithDefault("K", default=Never)
    V = TypeVarWithDefault("V", default=Never)
else:
    K = TypeVar("K")
    V = TypeVar("V")

StoreType = Literal["rocksdb", "in_memory", "versioned", "lru"]


@dataclass(frozen=True)
class Materialized(Generic[K, V]):
    """Store options of a table. A plain string means `Materialized(name)`.

    Attributes:
        name: Name of the store and of its changelog topic, also for queries; default: generated.
        key_serde: Serde of keys; default: the stream's, then the configured one.
        store_type: "rocksdb", "in_memory", "versioned" (on disk, with version history; needs
            `history_retention`) or "lru" (in memory, most recently used keys; needs `max_entries`).
            Default: the option `dsl_store_suppliers` ("rocksdb").
        caching: Buffer updates until a commit or a full cache, to send fewer downstream.
        logging: Write changes to a changelog topic. Without one, a lost disk loses the table.
        changelog_config: Topic settings for the changelog, such as `{"min.insync.replicas": "2"}`.
        retention: Windowed tables: a window expires when its start (a session's end) is this much
            older than the newest in its store. Default and minimum: the time after it in which the
            window may change.
        history_retention: Versioned tables: age limit for reading versions and for late records.
        max_entries: LRU tables: maximum number of keys.
        ttl: Tables without windows: lifetime of a row after its record's timestamp, in stream time.
        headers: Store the record's headers with each row and in the changelog (not for "versioned",
            "lru" or `ttl`). Default: the option `dsl_store_format`.

    Durations are `datetime.timedelta`, text ("30s") or int milliseconds. Type checkers see `Materialized[K, V]`
    with the types of its serdes, which must match the table, or `Never` for a missing serde.

    >>> Materialized("counts", store_type="in_memory", caching=False).name
    'counts'

    Rows that expire an hour after their record, and a table with a day of version history:

    >>> from datetime import timedelta
    >>> from tidewheel import StreamsBuilder
    >>> builder = StreamsBuilder()
    >>> seen = Materialized("seen", ttl=timedelta(hours=1))
    >>> builder.table("visits", key_serde=str, value_serde=str, store=seen).queryable_store_name
    'seen'
    >>> prices = Materialized("prices", store_type="versioned", history_retention=timedelta(days=1))
    >>> builder.table("prices", key_serde=str, value_serde=float, store=prices).queryable_store_name
    'prices'
    """

    name: str | None = None
    _: KW_ONLY
    key_serde: SerdeLike[K] | None = None
    value_serde: SerdeLike[V] | None = None
    store_type: StoreType | None = None
    caching: bool = True
    logging: bool = True
    changelog_config: Mapping[str, str] = field(default_factory=dict[str, str])
    retention: Duration | None = None
    history_retention: Duration | None = None
    max_entries: int | None = None
    ttl: Duration | None = None
    headers: bool | None = None

    def __post_init__(self) -> None:
        # The caller may be a dataclass's generated __init__, which is no user line.
        location = caller_location()
        context = where("Materialized", "" if location.startswith("<string>") else location)
        if self.name is not None:
            check_name(self.name, "store", context)
        if self.store_type is not None and self.store_type not in get_args(StoreType):
            raise TopologyError(
                f"{context}: store_type={self.store_type!r} is not a store type; "
                f"give {' or '.join(map(repr, get_args(StoreType)))}"
            )
        check_serde(self.key_serde, "key_serde", context)
        check_serde(self.value_serde, "value_serde", context)
        check_flags(context, caching=self.caching, logging=self.logging)
        check_changelog_config(self.changelog_config, context, logging=self.logging)
        self._check_limits(context)

    def _check_limits(self, context: str) -> None:
        optional_ms(self.retention, "retention", context)
        optional_ms(self.ttl, "ttl", context)
        optional_ms(self.history_retention, "history_retention", context, minimum_ms=0)
        store_type = self.store_type or "rocksdb"
        check_belongs(context, store_type, "versioned", "history_retention", self.history_retention)
        check_belongs(context, store_type, "lru", "max_entries", self.max_entries)
        if self.max_entries is not None:
            check_max_entries(self.max_entries, context)
        if self.ttl is not None and self.store_type == "versioned":
            raise TopologyError(
                f"{context}: a versioned table has no ttl; its latest versions live for ever, "
                "the others for history_retention"
            )
        if type(self.headers) not in (bool, NoneType):
            raise TopologyError(
                f"{context}: headers={self.headers!r}; give True or False, or leave it out to use dsl_store_format"
            )
        bounded = self.ttl is not None or self.store_type in ("versioned", "lru")
        if self.headers and bounded:
            raise TopologyError(
                f"{context}: headers=True is for plain tables and windowed ones; leave it out where rows have versions or "
                "end by use or time (store_type='versioned', 'lru', ttl=)"
            )

    @property
    def persistent(self) -> bool:
        """Return True for a type on disk; `dsl_store_suppliers` may replace a default type."""
        return self.store_type in (None, "rocksdb", "versioned")

    @property
    def fits_windows(self) -> bool:
        """Return True if stores of this `store_type` can keep windowed rows and join records."""
        return self.store_type in (None, "rocksdb", "in_memory")

    @classmethod
    def of(cls, store: "StoreArgument[Any, Any]", context: str) -> "Materialized[Any, Any]":
        """Return the options of a `store=` argument.

        >>> Materialized.of("counts", "count").name
        'counts'
        """
        if store is None:
            return cls()
        if isinstance(store, Materialized):
            return store
        if isinstance(store, str):  # pyright: ignore[reportUnnecessaryIsInstance] - untyped users
            return cls(check_name(store, "store", context))
        raise TopologyError(
            f"{context}: store is of type {type(store).__name__}; give a name or Materialized(...)"
        )

    @classmethod
    def of_table(cls, store: "StoreArgument[Any, Any]", context: str) -> "Materialized[Any, Any]":
        """Return the options of a `store=` argument; reject options of windowed tables."""
        materialized = cls.of(store, context)
        materialized.check_has_no_windows(context)
        return materialized

    def check_has_no_windows(self, context: str) -> None:
        """Raise `TopologyError` for an option of windowed tables."""
        if self.retention is not None:
            raise TopologyError(
                f"{context}: retention= is for windowed tables; rows of other tables live until they are deleted "
                "(ttl= ends them by time)"
            )

    def spec(
        self,
        name: str,
        key_serde: SerdePort,
        value_serde: SerdePort,
        *,
        context: str = "Materialized",
    ) -> StoreSpec:
        """Return the store spec of a table without windows."""
        self.check_has_no_windows(context)
        versioned = self.store_type == "versioned"
        spec = self._spec(
            StoreKind.VERSIONED if versioned else StoreKind.TIMESTAMPED_KEY_VALUE,
            (name, key_serde, value_serde),
        )
        history_ms = optional_ms(self.history_retention, "history_retention", context, minimum_ms=0)
        return replace(
            spec,
            # A cache would write versions out of order. An LRU table may evict a changed row before
            # the cache's flush, which would then send a deletion.
            caching=self.caching and not versioned and self.max_entries is None,
            history_retention_ms=history_ms or 0,
            max_entries=self.max_entries,
            ttl_ms=optional_ms(self.ttl, "ttl", context),
        )

    def window_spec(
        self,
        name: str,
        key_serde: SerdePort,
        value_serde: SerdePort,
        *,
        needed_retention_ms: int,
        window_size_ms: int,
        window_end: Callable[[int], int] | None = None,
        context: str,
    ) -> StoreSpec:
        """Return the store spec of a table by key and window.

        Args:
            needed_retention_ms: Time after its start in which a window may change.
            window_end: Returns the end of a window by its start, for windows of varying length.
        """
        spec = self._spec(StoreKind.TIMESTAMPED_WINDOW, (name, key_serde, value_serde))
        return replace(
            spec,
            retention_ms=self.windows_retention_ms(needed_retention_ms, context),
            window_size_ms=window_size_ms,
            window_end=window_end,
        )

    def session_spec(
        self,
        name: str,
        key_serde: SerdePort,
        value_serde: SerdePort,
        *,
        needed_retention_ms: int,
        context: str,
    ) -> StoreSpec:
        """Return the store spec of a table by key and session.

        `needed_retention_ms` is the time after its end in which a session may change.
        """
        spec = self._spec(StoreKind.SESSION, (name, key_serde, value_serde))
        return replace(spec, retention_ms=self.windows_retention_ms(needed_retention_ms, context))

    def _spec(self, kind: StoreKind, named: tuple[str, SerdePort, SerdePort]) -> StoreSpec:
        return StoreSpec(
            name=named[0],
            kind=kind,
            key_serde=named[1],
            value_serde=named[2],
            persistent=self.persistent,
            caching=self.caching,
            logging=self.logging,
            changelog_config=dict(self.changelog_config),
            keeps_headers=bool(self.headers),
        )

    def windows_retention_ms(self, needed_ms: int, context: str) -> int:
        """Return the retention of a windowed table (ms).

        Raise `TopologyError` if it is below `needed_ms`, or if another option excludes windows.
        """
        if not self.fits_windows:
            raise TopologyError(
                f"{context}: store_type={self.store_type!r} is not for windowed tables; give 'rocksdb' or 'in_memory'"
            )
        if self.ttl is not None:
            raise TopologyError(
                f"{context}: ttl= is not for windowed tables; give retention= for how long windows are kept"
            )
        retention_ms = optional_ms(self.retention, "retention", context)
        if retention_ms is None:
            return needed_ms
        if retention_ms < needed_ms:
            raise TopologyError(
                f"{context}: retention={self.retention!r} ({retention_ms} ms) is too short, windows may change for "
                f"{needed_ms} ms (their size and grace); give at least that, or leave it out"
            )
        return retention_ms


#: Types of `store=`: a name, or `Materialized` with both serdes, one or none.
StoreArgument = (
    str
    | Materialized[Never, Never]
    | Materialized[K, Never]
    | Materialized[Never, V]
    | Materialized[K, V]
    | None
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBuilder:
    """A store for `add_state_store`; made by `Stores`.

    Attributes:
        location: The user's file:line.
        takes_default: True if `dsl_store_suppliers` decides the store type.
        takes_format: True if `dsl_store_format` decides about headers.

    >>> from tidewheel import Stores
    >>> Stores.key_value("seen", key_serde=str, value_serde=int).spec.persistent
    True
    """

    spec: StoreSpec
    location: str = ""
    takes_default: bool = False
    takes_format: bool = False
