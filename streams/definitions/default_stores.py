"""Stores of the DSL that nobody has said of how they are kept, and the moment the settings say it."""

from dataclasses import replace
from typing import Final, get_args

from tidewheel.state_stores.spec import StoreKind
from tidewheel.streams.definitions.materialized import StoreBuilder
from tidewheel.streams.definitions.names import where
from tidewheel.streams.definitions.store_suppliers import DslStoreSuppliers, DslStoreType
from tidewheel.streams.errors import TopologyError
from tidewheel.streams.serdes.buffered import BufferedSerde

_TYPES: Final = get_args(DslStoreType)


def kept_as_set(builder: StoreBuilder, setting: object, store_format: str | None) -> StoreBuilder:
    """Return a store as `dsl_store_suppliers` and `dsl_store_format` want it, where nobody has said how it is kept."""
    if store_format is not None and builder.takes_format:
        builder = _in_format(builder, with_headers=store_format == "HEADERS")
    if setting is None or not builder.takes_default:
        return builder
    kind = setting if isinstance(setting, str) else _asked(setting, builder)
    return replace(
        builder, spec=replace(builder.spec, persistent=kind == "rocksdb"), takes_default=False
    )


def _in_format(builder: StoreBuilder, *, with_headers: bool) -> StoreBuilder:
    spec, serde = builder.spec, builder.spec.value_serde
    if isinstance(serde, BufferedSerde):  # the rows of suppress have headers in any format
        spec = replace(spec, value_serde=BufferedSerde(serde.inner, counts_headers=with_headers))
    else:
        spec = replace(spec, keeps_headers=with_headers)
    return replace(builder, spec=spec, takes_format=False)


def _asked(setting: object, builder: StoreBuilder) -> DslStoreType:
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
