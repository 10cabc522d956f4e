"""What a store is to be: `Materialized` for tables of the DSL, `Stores` for stores of the user's own processors.

Both become a `StoreSpec`; nothing here opens a store.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Literal, TypeGuard, TypeVar, get_args

from state_stores.ports import SerdePort
from state_stores.spec import StoreKind, StoreSpec
from streams.errors import TopologyError
from streams.functions import caller_location
from streams.names import check_name, where
from streams.serdes import Serde, SerdeLike, as_serde

K = TypeVar("K")
V = TypeVar("V")

#: Where a table of the DSL is kept: on disk, or in memory and restored at every start.
StoreType = Literal["rocksdb", "in_memory"]


@dataclass(frozen=True, slots=True)
class Materialized:
    """How a table is kept in a store. A plain string in its place means `Materialized(name)`.

    Attributes:
        name: The store's name, also that of its changelog topic and for queries; generated if not given.
        key_serde: Serde of keys; else the stream's, else the configured default.
        value_serde: Serde of values, likewise.
        store_type: "rocksdb" (default) or "in_memory".
        caching: Hold updates back until a commit or a full cache, so that fewer go downstream.
        logging: Write changes to a changelog topic. Without it a lost disk loses the table.
        changelog_config: Topic settings for the changelog, such as `{"min.insync.replicas": "2"}`.

    >>> Materialized("counts", store_type="in_memory", caching=False).name
    'counts'
    """

    name: str | None = None
    _: KW_ONLY
    key_serde: SerdeLike[Any] | None = None
    value_serde: SerdeLike[Any] | None = None
    store_type: StoreType = "rocksdb"
    caching: bool = True
    logging: bool = True
    changelog_config: Mapping[str, str] = field(default_factory=dict[str, str])

    def __post_init__(self) -> None:
        # The caller of a dataclass is its own made-up __init__; no line is better than that one.
        location = caller_location()
        context = where("Materialized", "" if location.startswith("<string>") else location)
        if self.name is not None:
            check_name(self.name, "store", context)
        if self.store_type not in get_args(StoreType):
            raise TopologyError(
                f"{context}: store_type={self.store_type!r} is not a store type; "
                f"give {' or '.join(map(repr, get_args(StoreType)))}"
            )
        _check_serde(self.key_serde, "key_serde", context)
        _check_serde(self.value_serde, "value_serde", context)
        _check_changelog_config(self.changelog_config, context)

    @classmethod
    def of(cls, store: "str | Materialized | None", context: str) -> "Materialized":
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

    def spec(self, name: str, key_serde: SerdePort, value_serde: SerdePort) -> StoreSpec:
        """Return the table's store, with the name and the serdes that were settled for it."""
        return StoreSpec(
            name=name,
            kind=StoreKind.TIMESTAMPED_KEY_VALUE,
            key_serde=key_serde,
            value_serde=value_serde,
            persistent=self.store_type == "rocksdb",
            caching=self.caching,
            logging=self.logging,
            changelog_config=dict(self.changelog_config),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreBuilder:
    """A store to be added with `add_state_store`; made by `Stores`.

    Attributes:
        spec: The store.
        location: The user's line that asked for it.

    >>> Stores.key_value("seen", key_serde=str, value_serde=int).spec.persistent
    True
    """

    spec: StoreSpec
    location: str = ""


class Stores:
    """Stores for processors of one's own; a processor gets one with `context.get_state_store(name)`.

    >>> Stores.key_value("seen", key_serde=str, value_serde=int).spec.name
    'seen'
    """

    @staticmethod
    def key_value(
        name: str,
        *,
        key_serde: SerdeLike[K],
        value_serde: SerdeLike[V],
        persistent: bool = True,
        caching: bool = False,
        logging: bool = True,
        changelog_config: Mapping[str, str] | None = None,
    ) -> StoreBuilder:
        """Return a store of keys and values.

        Args:
            name: The store's name, also that of its changelog topic.
            key_serde: Serde of keys.
            value_serde: Serde of values.
            persistent: Keep it in RocksDB; otherwise in memory, restored from the changelog at every start.
            caching: Hold updates back from the changelog until a commit.
            logging: Write changes to a changelog topic. Without it a lost disk loses the store.
            changelog_config: Topic settings for the changelog.

        >>> Stores.key_value("totals", key_serde=str, value_serde=float).spec.kind.value
        'key_value'
        """
        return _store(
            StoreKind.KEY_VALUE,
            name,
            (key_serde, value_serde),
            changelog_config,
            persistent=persistent,
            caching=caching,
            logging=logging,
        )

    @staticmethod
    def timestamped_key_value(
        name: str,
        *,
        key_serde: SerdeLike[K],
        value_serde: SerdeLike[V],
        persistent: bool = True,
        caching: bool = False,
        logging: bool = True,
        changelog_config: Mapping[str, str] | None = None,
    ) -> StoreBuilder:
        """Return a store of keys and `ValueAndTimestamp`; the options are those of `key_value`.

        >>> Stores.timestamped_key_value("last", key_serde=str, value_serde=str).spec.kind.value
        'timestamped_key_value'
        """
        return _store(
            StoreKind.TIMESTAMPED_KEY_VALUE,
            name,
            (key_serde, value_serde),
            changelog_config,
            persistent=persistent,
            caching=caching,
            logging=logging,
        )


def _store(
    kind: StoreKind,
    name: str,
    serdes: tuple[SerdeLike[Any], SerdeLike[Any]],
    changelog_config: Mapping[str, str] | None,
    **flags: bool,
) -> StoreBuilder:
    location = caller_location()
    context = where(f"Stores.{kind}", location)
    settings: Mapping[str, str] = changelog_config or {}
    _check_changelog_config(settings, context)
    spec = StoreSpec(
        name=check_name(name, "store", context),
        kind=kind,
        key_serde=_checked_serde(serdes[0], "key_serde", context),
        value_serde=_checked_serde(serdes[1], "value_serde", context),
        changelog_config=dict(settings),
        **flags,
    )
    return StoreBuilder(spec=spec, location=location)


def _checked_serde(serde: SerdeLike[Any], what: str, context: str) -> Serde[Any]:
    return as_serde(serde, f"{context}: {what}")


def _check_serde(serde: SerdeLike[Any] | None, what: str, context: str) -> None:
    if serde is not None:
        _checked_serde(serde, what, context)


def _is_mapping(config: object) -> TypeGuard[Mapping[object, object]]:
    return isinstance(config, Mapping)


def _check_changelog_config(config: object, context: str) -> None:
    if not _is_mapping(config):
        raise TopologyError(
            f"{context}: changelog_config is of type {type(config).__name__}; give a mapping of topic settings"
        )
    for option, value in config.items():
        if not isinstance(option, str) or not isinstance(value, str):
            raise TopologyError(
                f"{context}: changelog_config[{option!r}] is of type {type(value).__name__}; Kafka takes topic settings as "
                'text, as in {"min.insync.replicas": "2"}'
            )
