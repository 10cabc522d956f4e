"""Input sampling: checks the first keys of joined topics against their partitioners."""

import time
from typing import Final

from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.topology.key_placement import KeyCheck, checked_topics
from tidewheel.streams.worker.application.wiring import make_clients
from tidewheel.tasks.kafka.internal_topics import plan_application
from tidewheel.tasks.processing.api.topology_spec import TopologySpec

_TIMEOUT_S: Final = 15.0
_POLL_S: Final = 0.2
_RECORDS: Final = 1_000


def sampled_inputs(spec: TopologySpec, config: StreamsConfig) -> tuple[KeyCheck, list[str]]:
    """Check the keys of joined topics' first records; return the check and topic names.

    Raises `MissingSourceTopicError`, `CopartitioningError`, or `StreamsError` if no broker answers.
    """
    clients = make_clients(config)
    admin = clients.admin()
    try:
        plan = plan_application(
            spec,
            config.application_id,
            admin.list_topics(),
            replication_factor=config.replication_factor,
            factor=config.parallelising_factor,
        )
        counts = checked_topics(plan)
        check = KeyCheck(counts, config.input_partitioners, lambda _: None)
        partitions = list(check.waiting)
        starts, ends = admin.beginning_offsets(partitions), admin.end_offsets(partitions)
        remaining = {
            partition: starts[partition]
            for partition in partitions
            if starts[partition] < ends[partition]
        }
        source = clients.source()
        try:
            source.assign(remaining)
            deadline_s = time.monotonic() + _TIMEOUT_S
            while remaining and time.monotonic() < deadline_s:
                for chunk in source.poll(_RECORDS, _POLL_S):
                    check.sample(chunk)
                for partition, position in source.positions().items():
                    if partition not in check.waiting or position >= ends[partition]:
                        remaining.pop(partition, None)
        finally:
            source.close()
    finally:
        admin.close()
    return check, sorted(counts)
