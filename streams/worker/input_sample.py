"""Input sampling: checks the first keys of joined topics against their partitioners."""

import time
from collections.abc import Mapping
from typing import Final

from tidewheel.rebalance.model import TopicPartition
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.kafka.admin.reset_admin import TIMEOUT_S, KafkaResetAdmin, show_wait
from tidewheel.streams.kafka.client.waits import reported_wait
from tidewheel.streams.topology.key_placement import KeyCheck, checked_topics
from tidewheel.streams.worker.application.configured_plan import configured_plan
from tidewheel.streams.worker.application.wiring import make_clients
from tidewheel.tasks.kafka.ports import RecordSource
from tidewheel.tasks.processing.api.topology_spec import TopologySpec

_POLL_S: Final = 0.2
_RECORDS: Final = 1_000


def sampled_inputs(spec: TopologySpec, config: StreamsConfig) -> tuple[KeyCheck, list[str]]:
    """Check the keys of joined topics' first records; return the check and topic names.

    Raises `MissingSourceTopicError`, `CopartitioningError`, or `StreamsError` if no broker answers.
    """
    clients = make_clients(config)
    admin = KafkaResetAdmin(clients.settings)
    try:
        plan = configured_plan(spec, config, admin.list_topics())
        counts = checked_topics(plan)
        check = KeyCheck(counts, config.input_partitioners, lambda _: None)
        partitions = list(check.waiting)
        starts, ends = admin.beginning_offsets(partitions), admin.stable_offsets(partitions)
        remaining = {
            partition: starts[partition]
            for partition in partitions
            if starts[partition] < ends[partition]
        }
        source = clients.source()
        try:
            with reported_wait("the first records of the inputs", show_wait):
                _sample(source, check, remaining, ends)
        finally:
            source.close()
    finally:
        admin.close()
    return check, sorted(counts)


def _sample(
    source: RecordSource,
    check: KeyCheck,
    remaining: dict[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> None:
    source.assign(remaining)
    deadline_s = time.monotonic() + TIMEOUT_S
    while remaining:
        for chunk in source.poll(_RECORDS, _POLL_S):
            check.sample(chunk)
        for partition, position in source.positions().items():
            if partition not in check.waiting or position >= ends[partition]:
                remaining.pop(partition, None)
        if remaining and time.monotonic() >= deadline_s:
            raise StreamsError(
                f"the first records of {', '.join(map(str, remaining))} were not read within {TIMEOUT_S:.0f} s; check the "
                "brokers, and run the command again"
            )
