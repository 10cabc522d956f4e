"""A look at the inputs of joins before an application runs: the first keys of each partition, held against their partitioner."""

import time
from typing import Final

from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.topology.key_placement import KeyCheck, checked_topics
from tidewheel.streams.worker.application.wiring import make_clients
from tidewheel.tasks.internal_topics import plan_application
from tidewheel.tasks.processing.api.topology_spec import TopologySpec

#: So long records are waited for, and so many are taken at once.
_PATIENCE_S: Final = 15.0
_POLL_S: Final = 0.2
_RECORDS: Final = 1_000


def sampled_inputs(spec: TopologySpec, config: StreamsConfig) -> tuple[KeyCheck, list[str]]:
    """Return what was found in the first records of the inputs that are joined, and the names of these.

    Raises `MissingSourceTopicError` or `CopartitioningError` as a worker would at its start, and `StreamsError` where brokers
    don't answer.
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
        begins, ends = admin.beginning_offsets(partitions), admin.end_offsets(partitions)
        left = {each: begins[each] for each in partitions if begins[each] < ends[each]}
        source = clients.source()
        try:
            source.assign(left)
            give_up_s = time.monotonic() + _PATIENCE_S
            while left and time.monotonic() < give_up_s:
                for chunk in source.poll(_RECORDS, _POLL_S):
                    check.sample(chunk)
                for each, position in source.positions().items():
                    if each not in check.waiting or position >= ends[each]:
                        left.pop(each, None)
        finally:
            source.close()
    finally:
        admin.close()
    return check, sorted(counts)
