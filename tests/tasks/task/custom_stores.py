"""Custom stores for tests: totals by key, in memory or in a file, and a program that uses them."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.tasks.loop.bench import Fuse
from tidewheel import (
    ChangelogRecord,
    Processor,
    Record,
    Serdes,
    StateStore,
    StateStoreContext,
    Stores,
    StreamsBuilder,
    Topology,
)

STRING = Serdes.string()


class Totals(StateStore):
    """Counts by key, in memory."""

    def __init__(self) -> None:
        self.totals: dict[str, int] = {}
        self.restored: list[ChangelogRecord] = []
        self.closed = 0

    def add(self, key: str) -> int:
        total = self.totals.get(key, 0) + 1
        self.context.log_change(key.encode(), str(total).encode())
        self.totals[key] = total
        return total

    def forget(self, key: str) -> None:
        self.context.log_change(key.encode(), None)
        self.totals.pop(key, None)

    def restore(self, records: Sequence[ChangelogRecord]) -> None:
        self.restored.extend(records)
        for record in records:
            if record.value is None:
                self.totals.pop(record.key.decode(), None)
            else:
                self.totals[record.key.decode()] = int(record.value)

    def close(self) -> None:
        self.closed += 1


class KeptTotals(Totals):
    """Counts by key, in a file that each commit rewrites."""

    manages_offsets = True

    def __init__(self, fuse: Fuse | None = None) -> None:
        super().__init__()
        self._fuse = fuse or Fuse()
        self._offsets: dict[str, int] = {}

    def init(self, context: StateStoreContext) -> None:
        super().init(context)
        if self._path.exists():
            self.totals, self._offsets = json.loads(self._path.read_text())

    @property
    def _path(self) -> Path:
        return self.context.state_dir / "totals.json"

    def commit(self, offsets: Mapping[tuple[str, int], int]) -> None:
        self._fuse.step("keep")
        self._offsets = {f"{topic}-{partition}": at for (topic, partition), at in offsets.items()}
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps([self.totals, self._offsets]))
        fresh.replace(self._path)
        self._fuse.step("kept")

    def committed_offset(self, topic: str, partition: int) -> int | None:
        return self._offsets.get(f"{topic}-{partition}")


class Counting(Processor[str, str, str, int]):
    """Counts by key; the value "forget" resets, "commit" requests a commit, "fail" raises."""

    #: Content of each processor's store at its start.
    begun: list[dict[str, int]]

    def init(self, context: Any) -> None:
        super().init(context)
        self.store = context.get_state_store("totals")
        self.begun.append(dict(self.store.totals))

    def process(self, record: Record[str, str]) -> None:
        if record.value == "forget":
            self.store.forget(record.key)
            return
        self.context.forward(record.replace(value=self.store.add(record.key)))
        if record.value == "commit":
            self.context.commit()
        if record.value == "fail":
            raise ValueError(record.key)


def counting_by(
    make: Callable[[], StateStore], *, begun: list[dict[str, int]] | None = None, **options: Any
) -> Topology:
    """Return a topology that counts from "in" to "out" in a custom store."""

    def made() -> Counting:
        processor = Counting()
        processor.begun = [] if begun is None else begun
        return processor

    builder = StreamsBuilder().add_state_store(Stores.custom("totals", make, **options))
    stream = builder.stream("in", key_serde=STRING, value_serde=STRING)
    stream.process(made, stores=["totals"]).to("out", key_serde=STRING, value_serde=Serdes.int64())
    return builder.build()
