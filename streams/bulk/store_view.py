"""Store contents read partition by partition, without Spark or a worker."""

import contextlib
import os
import tempfile
import uuid
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from tidewheel.state_stores.bulk_restore.location import SnapshotLocation
from tidewheel.state_stores.bulk_restore.manifest import ChangelogFacts, StoreSnapshot
from tidewheel.state_stores.bulk_restore.shape import StoreShape
from tidewheel.streams.bulk.columns import RowDecoder, columns_of
from tidewheel.streams.bulk.content import read_content, reading_plan
from tidewheel.streams.bulk.driver import BulkProgress, OnProgress, newest_snapshot, now_ms
from tidewheel.streams.bulk.executors import ExecutorWork
from tidewheel.streams.bulk.stores import BulkStore, bulk_stores, changelog_facts
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.errors import ConfigError, SchemaRegistryError, StreamsError
from tidewheel.streams.kafka.admin.admin import KafkaAdmin
from tidewheel.streams.kafka.admin.reset_admin import KafkaResetAdmin
from tidewheel.streams.kafka.portable_settings import settings_of
from tidewheel.streams.serdes.partitioning import partition_of
from tidewheel.streams.topology.topology import Topology

_PREFIX: Final = "tidewheel-look-"

#: Column type for which `RowDecoder` keeps Python objects; `string` would make text or JSON of them.
_AS_IT_IS: Final = "binary"


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSummary:
    """Summary of a store; `offsets` is the number of offsets in all changelog partitions."""

    store: str
    kind: str
    topic: str
    partitions: int
    offsets: int
    snapshot: StoreSnapshot | None


class StateView:
    def __init__(self, topology: Topology, config: StreamsConfig, admin: KafkaAdmin) -> None:
        self._topology = topology
        self._config = config
        self._admin = admin
        url = config.snapshot_location
        self._place = None if url is None else SnapshotLocation(str(url))

    def summaries(self) -> list[StoreSummary]:
        stores = bulk_stores(self._topology, self._config, self._admin)
        facts = changelog_facts(stores, self._admin, now_ms())
        return [
            StoreSummary(
                store=store.name,
                kind=store.spec.kind,
                topic=store.topic,
                partitions=store.partitions,
                offsets=sum(
                    changelog.stable_end - changelog.log_start
                    for changelog in (facts[store.changelog(n)] for n in range(store.partitions))
                ),
                snapshot=self._snapshot(store, facts[store.changelog(0)]),
            )
            for store in stores
        ]

    def store(self, name: str) -> BulkStore:
        return bulk_stores(self._topology, self._config, self._admin, [name])[0]

    def rows(
        self, store: BulkStore, partition: int, on_progress: OnProgress | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield a partition's committed rows as dicts of their columns (see `columns_of`)."""
        for columns, _ in self._decoded(store, partition, on_progress):
            yield columns

    def rows_of_key(
        self, store: BulkStore, key: bytes, partition: int, on_progress: OnProgress | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield all rows of a key (windows or versions)."""
        for columns, row_key in self._decoded(store, partition, on_progress):
            if row_key == key:
                yield columns

    def _decoded(
        self, store: BulkStore, partition: int, on_progress: OnProgress | None
    ) -> Iterator[tuple[dict[str, Any], bytes]]:
        if not 0 <= partition < store.partitions:
            raise ConfigError(
                f"store {store.name} has partitions 0 to {store.partitions - 1}, not {partition}"
            )
        facts = changelog_facts([store], self._admin, now_ms())[store.changelog(partition)]
        reading, plan = reading_plan(store, self._snapshot(store, facts), facts)
        work = ExecutorWork(
            settings=settings_of(self._config),
            location=str(self._config.snapshot_location or ""),
            application_id=self._config.application_id,
            shapes={store.name: StoreShape.of(store.spec)},
            topics={store.name: store.topic},
        )
        reader = RowDecoder(store.spec, store.topic, _AS_IT_IS, _AS_IT_IS)
        names = tuple(columns_of(store.spec, _AS_IT_IS, _AS_IT_IS))
        with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder:
            count = _counter(store, facts, plan.from_offset, on_progress)
            content = read_content(work, reading, Path(folder), count)
            for stored in content.rows(store.spec):
                yield dict(zip(names, reader.row(stored), strict=True)), stored.key

    def _snapshot(self, store: BulkStore, facts: ChangelogFacts) -> StoreSnapshot | None:
        return newest_snapshot(self._place, self._config.application_id, store.name, facts.topic_id)


def _counter(
    store: BulkStore, facts: ChangelogFacts, begin: int, on_progress: OnProgress | None
) -> Any:
    done, began_ms = 0, now_ms()

    def count(offsets: int) -> None:
        nonlocal done
        done += offsets
        if on_progress is not None:
            on_progress(
                BulkProgress(
                    step=f"reading {store.name} partition {facts.partition}",
                    done=done,
                    total=facts.stable_end - begin,
                    elapsed_s=(now_ms() - began_ms) / 1000,
                )
            )

    return count


@contextlib.contextmanager
def state_view(topology: Topology, config: StreamsConfig) -> Generator[StateView]:
    admin = KafkaResetAdmin(settings_of(config))
    try:
        yield StateView(topology, config, admin)
    finally:
        admin.close()


def key_bytes(store: BulkStore, text: str) -> bytes:
    """Return the bytes of a key that a user typed.

    Uses the text itself if the serde keeps it unchanged. Otherwise tries JSON, text, bytes, UUID.
    """
    serde = store.spec.key_serde
    plain = os.fsencode(text)
    if _written(store, text) == plain:
        return plain
    for candidate in _candidates(text):
        data = _written(store, candidate)
        if data is not None:
            return data
    raise ConfigError(
        f"{text!r} is no key of store {store.name} ({type(serde).__name__}); write text, or JSON such as 7, true or "
        '{"id": 7}'
    )


def _written(store: BulkStore, key: Any) -> bytes | None:
    """Return a key's bytes, None if the serde rejects it or decodes another value."""
    serde = store.spec.key_serde
    try:
        data: bytes | None = serde.serialize(store.topic, key)
        is_same = data is not None and serde.deserialize(store.topic, data) == key
    except SchemaRegistryError:
        raise  # The key may be valid: the registry failed.
    except (StreamsError, TypeError, ValueError, AttributeError):
        return None
    return data if is_same else None


def _candidates(text: str) -> Iterator[Any]:
    if text == text.strip():  # JSON would accept " 7"
        with contextlib.suppress(msgspec.DecodeError):
            yield msgspec.json.decode(os.fsencode(text))
    yield text
    yield os.fsencode(text)
    with contextlib.suppress(ValueError):
        yield uuid.UUID(text)


def partition_of_key(store: BulkStore, key: bytes) -> int:
    return partition_of(key, store.partitions)
