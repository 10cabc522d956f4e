"""Worker wiring: clients, state directory, settings of the loop."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import msgspec

from tidewheel.rebalance.assignors.fixed import fixed_tasks
from tidewheel.rebalance.model import TaskId
from tidewheel.rebalance.protocol.task_status import RunningCall
from tidewheel.state_stores.spec import StoreKind
from tidewheel.state_stores.state_directory import StateDirectory
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.config.client_properties import CLIENT_KINDS
from tidewheel.streams.errors import ConfigError, StreamsError
from tidewheel.streams.graph.store_identity import named_operators
from tidewheel.streams.kafka.client.statistics import ClientStatistics
from tidewheel.streams.kafka.clients import KafkaClients
from tidewheel.streams.topology.key_placement import KeyCheck, checked_topics
from tidewheel.streams.worker.application.application import Application
from tidewheel.streams.worker.application.run_options import RunOptions
from tidewheel.streams.worker.application.task_factory import error_handlers
from tidewheel.streams.worker.application.topic_limits import KafkaTopics
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan
from tidewheel.tasks.kafka.ports import Admin
from tidewheel.tasks.key_ranges.keyed_analysis import keyedness
from tidewheel.tasks.loop.worker_ports import WorkerPorts
from tidewheel.tasks.processing.api.topology_spec import TopologySpec
from tidewheel.tasks.restore.run_ports import RunSettings
from tidewheel.tasks.task.worker_settings import (
    RECOMMIT_MS_MAX,
    WorkerSettings,
    recommit_interval_ms,
)

_log = logging.getLogger("tidewheel")

#: Maximum ms before a commit's deadline at which the worker starts to send the commit's records, so
#: brokers have them by the deadline.
EARLY_MS = 25


def make_clients(
    config: StreamsConfig,
    on_wait: Callable[[], None] = lambda: None,
    statistics: ClientStatistics | None = None,
) -> KafkaClients:
    """Return the client factory; `on_wait` is called while a producer waits for brokers."""
    # Consumers read from brokers of the same rack. The user's properties win.
    rack = {} if config.rack_id is None else {"client.rack": config.rack_id}
    return KafkaClients(
        bootstrap_servers=config.bootstrap_servers,
        application_id=config.application_id,
        consumer={**rack, **config.client_properties("consumer")},
        producer=config.client_properties("producer"),
        admin=config.client_properties("admin"),
        kafka=config.kafka,
        on_wait=on_wait,
        statistics=statistics,
    )


def claim_slot(
    config: StreamsConfig, number: int | None, *, next_free: bool = False
) -> StateDirectory:
    """Acquire slot `number`, with `next_free` the next free one; None: the lowest free one."""
    slot = StateDirectory.acquire(
        Path(config.state_dir),
        config.application_id,
        slot=number,
        exclusive=config.state_dir_exclusive,
        next_free=next_free and not config.state_dir_exclusive,
    )
    if slot.others:
        _log.warning(
            "taking slot %d of %s: %s",
            slot.slot,
            slot.path.parent,
            ", ".join(f"slot {holder.slot} is held by {holder}" for holder in slot.others),
        )
    return slot


def fixed_assignment(plan: ApplicationPlan, options: RunOptions) -> frozenset[TaskId]:
    chosen = options.tasks
    if chosen is None:
        return fixed_tasks(plan.tasks, slot=options.slot or 0, workers=options.workers)
    return frozenset(chosen)


def fixed_transactional_id(config: StreamsConfig, slot: int) -> str:
    """Return a slot's transactional id, always the same: a restart fences its predecessor."""
    instance = "" if config.group_instance_id is None else f"{config.group_instance_id}-"
    return f"{config.application_id}-fixed-{instance}{slot}"


def range_threads(config: StreamsConfig) -> int:
    """Return the number of threads for key ranges; 1: the loop's thread does all."""
    threads = config.num_stream_threads
    return config.parallelising_factor if threads == "auto" else threads


def check_custom_stores(spec: TopologySpec, config: StreamsConfig) -> None:
    """Raise `ConfigError` for custom stores if key ranges run in several threads.

    These process records during a commit; a custom store would commit such changes too early.
    """
    for store in (
        spec_store for subtopology in spec.subtopologies for spec_store in subtopology.stores
    ):
        if store.kind is StoreKind.CUSTOM and range_threads(config) > 1:
            raise ConfigError(
                f"store {store.name!r} is a custom one (Stores.custom), which can't be used if key ranges run in "
                f"{range_threads(config)} threads; set num_stream_threads=1 (and share the work among more processes), or "
                "keep its data in another store of Stores"
            )


def whole_tasks(spec: TopologySpec, config: StreamsConfig) -> list[str]:
    if range_threads(config) == 1 or config.parallelising_factor == 1:
        return []
    analyses = [(subtopology.id, keyedness(subtopology)) for subtopology in spec.subtopologies]
    return [
        f"tasks of sub-topology {number} are not split into key ranges, so parallelising_factor="
        f"{config.parallelising_factor} does nothing for them: {analysis.reason}"
        for number, analysis in analyses
        if not analysis.keyed
    ]


def worker_settings(
    application: Application, transactional_id: str, *, recommit_ms: int
) -> WorkerSettings:
    config = application.config
    return WorkerSettings(
        **shared_options(config, WorkerSettings),
        transactional_id=transactional_id,
        siblings=application.options.workers - 1 if application.is_fixed else 0,
        topology_hash=application.topology_hash,
        early_ms=EARLY_MS,
        operators=named_operators(application.spec),
        status_interval_ms=config.heartbeat_interval_ms // 2,
        threads=range_threads(config),
        recommit_ms=recommit_ms,
        handlers=error_handlers(config),
    )


def shared_options(config: StreamsConfig, settings: type[msgspec.Struct]) -> dict[str, Any]:
    """Return the options that `settings` has under the same names, and clients' properties."""
    names = [name for name in settings.__struct_fields__ if name in StreamsConfig.model_fields]
    values: dict[str, Any] = {name: getattr(config, name) for name in names}
    values |= {kind: config.client_properties(kind) for kind in CLIENT_KINDS if kind in values}
    return {
        name: dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else value
        for name, value in values.items()
    }


def recommit_interval(admin: Admin) -> int:
    """Return the interval (ms) of commits of idle partitions: brokers expire offsets."""
    try:
        retention_ms = admin.offsets_retention_ms()
    except StreamsError as error:
        _log.info(
            "idle partitions are committed again every %d hours, because the brokers' offsets.retention.minutes "
            "can't be read: %s",
            RECOMMIT_MS_MAX // 3_600_000,
            error,
        )
        return RECOMMIT_MS_MAX
    return recommit_interval_ms(retention_ms)


def worker_ports(
    application: Application,
    clients: KafkaClients,
    admin: Admin,
    slot: StateDirectory,
    plan: ApplicationPlan,
    global_call: Callable[[], RunningCall | None],
) -> WorkerPorts:
    runs = application.runs
    timeout_ms = application.transaction_timeout_ms
    at_least_once = application.config.processing_guarantee == "at_least_once"
    return WorkerPorts(
        make_source=clients.source,
        make_input_reader=clients.input_reader,
        make_producer=lambda transactional_id: clients.transactional_producer(
            transactional_id, timeout_ms
        ),
        make_sink_producer=clients.sink_producer if at_least_once else None,
        make_reader=clients.changelog_reader,
        admin=admin,
        topics=KafkaTopics(admin),
        clock=application.clock,
        runs=None if runs is None else RunSettings(maker=runs, directory=slot.restore_directory),
        on_record=application.options.on_record,
        input_check=KeyCheck(checked_topics(plan), application.config.input_partitioners),
        global_call=global_call,
        event_loop=application.event_loop,
    )
