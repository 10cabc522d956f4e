"""What a store is: its name, kind and settings, as one value that the DSL makes and the tasks open."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from state_stores.ports import SerdePort


class StoreKind(StrEnum):
    """The store types of this version; window, session and versioned stores come with the rest of the language."""

    KEY_VALUE = "key_value"
    TIMESTAMPED_KEY_VALUE = "timestamped_key_value"


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
    """

    name: str
    kind: StoreKind
    key_serde: SerdePort
    value_serde: SerdePort
    persistent: bool = True
    caching: bool = False
    logging: bool = True
    changelog_config: Mapping[str, str] = field(default_factory=dict[str, str])
