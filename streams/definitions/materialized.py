"""What a table's store is to be: `Materialized`. It becomes a `StoreSpec`; nothing here opens a store."""

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
from tidewheel.streams.durations import Duration
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.serdes import SerdeLike
from tidewheel.streams.user_functions import caller_location

# What a store without a serde is of. `Any` would make its table one of `Any`, where the types are known without it.
if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    K = TypeVarWithDefault("K", default=Never)
    V = TypeVarWithDefault("V", default=Never)
else:
    K = TypeVar("K")
    V = TypeVar("V")

#: How a table of the DSL is kept: on disk; in memory and restored at every start; on disk with the history of every
#: key; in memory with the keys used last only.
StoreType = Literal["rocksdb", "in_memory", "versioned", "lru"]


@dataclass(frozen=True)
class Materialized(Generic[K, V]):
    """How a table is kept in a store. A plain string in its place means `Materialized(name)`.

    Attributes:
        name: The store's name, also that of its changelog topic and for queries; generated if not given.
        key_serde: Serde of keys; else the stream's, else the configured default.
        value_serde: Serde of values, likewise.
        store_type: "rocksdb", "in_memory", "versioned" (on disk, with the history of every key; needs
            `history_retention`) or "lru" (in memory, the keys used last; needs `max_entries`). If not given, the setting
            `dsl_store_suppliers` decides: "rocksdb" unless it is set.
        caching: Hold updates back until a commit or a full cache, so that fewer go downstream.
        logging: Write changes to a changelog topic. Without it a lost disk loses the table.
        changelog_config: Topic settings for the changelog, such as `{"min.insync.replicas": "2"}`.
        retention: Windowed tables: how long a window is kept, counted from its start (a session's end) to the largest
            one seen; as long as late records may come if not given, and never shorter.
        history_retention: Versioned tables: how far back a version may be read, and how late a record may be.
        max_entries: LRU tables: how many keys are kept.
        ttl: Tables without windows: how long a row lives after the timestamp of the record that set it, in stream time.
        headers: Each row keeps the headers of the record that set it, here and in the changelog (not with
            `store_type="versioned"`, `"lru"` or `ttl`). If not given, the setting `dsl_store_format` decides.

    Durations are `datetime.timedelta` or int milliseconds. For type checkers it is `Materialized[K, V]` of the types of its
    serdes, which must be the table's; `Never` stands for one that is not given.

    Raises:
        TopologyError: A name that can't be one, what is no serde, or options that do not go together.

    >>> Materialized("counts", store_type="in_memory", caching=False).name
    'counts'

    A row that ends an hour after its record, and a table that knows what was true at any time of the last day:

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
        # The caller of a dataclass is its own made-up __init__; no line is better than that one.
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
        kept = self.store_type or "rocksdb"
        check_belongs(context, kept, "versioned", "history_retention", self.history_retention)
        check_belongs(context, kept, "lru", "max_entries", self.max_entries)
        if self.max_entries is not None:
            check_max_entries(self.max_entries, context)
        if self.ttl is not None and self.store_type == "versioned":
            raise TopologyError(
                f"{context}: a versioned table has no ttl; its latest versions live for ever, "
                "the others for history_retention"
            )
        if type(self.headers) not in (bool, NoneType):
            raise TopologyError(
                f"{context}: headers={self.headers!r}; give True or False, or leave it out for what dsl_store_format says"
            )
        bounded = self.ttl is not None or self.store_type in ("versioned", "lru")
        if self.headers and bounded:
            raise TopologyError(
                f"{context}: headers=True is for plain tables and windowed ones; leave it out where rows have versions or "
                "end by use or time (store_type='versioned', 'lru', ttl=)"
            )

    @property
    def persistent(self) -> bool:
        """Return whether the store is on disk, as long as no setting says otherwise."""
        return self.store_type in (None, "rocksdb", "versioned")

    @property
    def fits_windows(self) -> bool:
        """Return whether such a store can keep rows by time, and records of joins."""
        return self.store_type in (None, "rocksdb", "in_memory")

    @classmethod
    def of(cls, store: "StoreArgument[Any, Any]", context: str) -> "Materialized[Any, Any]":
        """Return what a `store=` argument means; raises `TopologyError` for anything else.

        >>> Materialized.of("counts", "count").name
        'counts'
        """
        if store is None:
            return cls()
        if isinstance(store, Materialized):
            return store
        if isinstance(store, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users without a type checker
            return cls(check_name(store, "store", context))
        raise TopologyError(
            f"{context}: store is of type {type(store).__name__}; give a name or Materialized(...)"
        )

    @classmethod
    def of_table(cls, store: "StoreArgument[Any, Any]", context: str) -> "Materialized[Any, Any]":
        """Return what the `store=` of a table without windows means; raises `TopologyError` for anything else."""
        wishes = cls.of(store, context)
        wishes.check_has_no_windows(context)
        return wishes

    def check_has_no_windows(self, context: str) -> None:
        """Raise `TopologyError` if there is a wish that only windowed tables can fulfil."""
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
        """Return the store of a table without windows, with the name and the serdes that were settled for it.

        Args:
            name: The store's name.
            key_serde: Serde of keys.
            value_serde: Serde of values.
            context: The operator and the user's line, for errors.
        """
        self.check_has_no_windows(context)
        versioned = self.store_type == "versioned"
        spec = self._spec(
            StoreKind.VERSIONED if versioned else StoreKind.TIMESTAMPED_KEY_VALUE,
            (name, key_serde, value_serde),
        )
        history_ms = optional_ms(self.history_retention, "history_retention", context, minimum_ms=0)
        return replace(
            spec,
            # What was held back would reach readers of versions out of order (Kafka Streams has no cache there either),
            # and may be gone from an LRU table when its turn comes.
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
        """Return the store of a table by key and window.

        Args:
            name: The store's name.
            key_serde: Serde of keys (without the window).
            value_serde: Serde of values.
            needed_retention_ms: How long a window may still change after its start.
            window_size_ms: Length of a window.
            window_end: Gives the end of a window that begins at a start, where the length doesn't tell.
            context: The operator and the user's line, for errors.
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
        """Return the store of a table by key and session; `needed_retention_ms` is how long after its end one may change."""
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
        """Return how long a windowed table keeps its rows; raises `TopologyError` if that is not long enough."""
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


#: What a table's `store=` may be: with both serdes, with one of them, or with none.
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
    """A store to be added with `add_state_store`; made by `Stores`.

    Attributes:
        spec: The store.
        location: The user's line that asked for it.
        takes_default: Nobody has said how it is kept: the setting `dsl_store_suppliers` does.
        takes_format: Nobody has said whether it keeps headers: the setting `dsl_store_format` does.

    >>> from tidewheel import Stores
    >>> Stores.key_value("seen", key_serde=str, value_serde=int).spec.persistent
    True
    """

    spec: StoreSpec
    location: str = ""
    takes_default: bool = False
    takes_format: bool = False
