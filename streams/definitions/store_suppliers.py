"""Default types of DSL stores: the option `dsl_store_suppliers`."""

from dataclasses import replace
from typing import Final, Literal, get_args

from tidewheel.state_stores.spec import StoreKind
from tidewheel.streams.definitions.materialized import StoreBuilder
from tidewheel.streams.definitions.names import where
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.serdes.buffered import BufferedSerde

#: Default store type: on disk, or in memory and restored at each start.
DslStoreType = Literal["rocksdb", "in_memory"]
_TYPES: Final = get_args(DslStoreType)

#: Default row content: value and timestamp; "HEADERS": the record's headers, too.
DslStoreFormat = Literal["DEFAULT", "HEADERS"]


class DslStoreSuppliers:
    """Default store type per DSL store; subclass it for the option `dsl_store_suppliers`.

    Each method receives the store's name once, when the topology is built, and returns "rocksdb" or
    "in_memory". A `store_type` of `Materialized` takes precedence.

    >>> class WindowsInMemory(DslStoreSuppliers):
    ...     def window_store(self, name: str) -> DslStoreType:
    ...         return "in_memory"
    >>> WindowsInMemory().window_store("counts"), WindowsInMemory().session_store("visits")
    ('in_memory', 'rocksdb')
    """

    def key_value_store(self, name: str) -> DslStoreType:  # noqa: ARG002 - for overriding methods
        """Return the type for unwindowed tables, join buffers and foreign-key subscriptions."""
        return "rocksdb"

    def window_store(self, name: str) -> DslStoreType:  # noqa: ARG002 - for overriding methods
        """Return the type for windowed tables and for each side of a stream-stream join."""
        return "rocksdb"

    def session_store(self, name: str) -> DslStoreType:  # noqa: ARG002 - for overriding methods
        """Return the type for tables by session."""
        return "rocksdb"


def with_default_store_type(
    builder: StoreBuilder, setting: object, store_format: str | None
) -> StoreBuilder:
    """Return a store with the defaults of `dsl_store_suppliers` and `dsl_store_format` applied."""
    if store_format is not None and builder.takes_format:
        builder = _in_format(builder, with_headers=store_format == "HEADERS")
    if setting is None or not builder.takes_default:
        return builder
    kind = setting if isinstance(setting, str) else _supplied_type(setting, builder)
    return replace(
        builder, spec=replace(builder.spec, persistent=kind == "rocksdb"), takes_default=False
    )


def _in_format(builder: StoreBuilder, *, with_headers: bool) -> StoreBuilder:
    spec, serde = builder.spec, builder.spec.value_serde
    # Buffered rows always have headers: the format only decides if the buffer's size counts them.
    if isinstance(serde, BufferedSerde):
        spec = replace(spec, value_serde=BufferedSerde(serde.inner, counts_headers=with_headers))
    else:
        spec = replace(spec, keeps_headers=with_headers)
    return replace(builder, spec=spec, takes_format=False)


def _supplied_type(setting: object, builder: StoreBuilder) -> DslStoreType:
    suppliers = setting() if isinstance(setting, type) else setting
    assert isinstance(suppliers, DslStoreSuppliers), "the setting was checked"
    match builder.spec.kind:
        case StoreKind.WINDOW | StoreKind.TIMESTAMPED_WINDOW:
            ask = suppliers.window_store
        case StoreKind.SESSION:
            ask = suppliers.session_store
        case _:
            ask = suppliers.key_value_store
    answer = ask(builder.spec.name)
    if answer not in _TYPES:
        raise TopologyError(
            f"{where(f'store {builder.spec.name!r}', builder.location)}: {type(suppliers).__name__}.{ask.__name__} of "
            f"dsl_store_suppliers answered {answer!r}; make it return 'rocksdb' or 'in_memory'"
        )
    return answer
