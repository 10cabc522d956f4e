"""Hello message of a worker to the watchdog."""

import logging
import os
import socket
import sys
from typing import Final, cast

import msgspec

from tidewheel.rebalance.leader.decision import CoordinatorSettings
from tidewheel.rebalance.leader.sharding import required_version
from tidewheel.rebalance.producer_ids import group_id
from tidewheel.rebalance.protocol.field_types import ShardCount
from tidewheel.rebalance.protocol.messages import (
    MESSAGE_BYTES_MAX,
    PROTOCOL_MAX,
    PROTOCOL_MIN,
    DiskCopy,
    JoinGroup,
    ShardCopy,
    encode_message,
)
from tidewheel.state_stores.state_directory import StateDirectory
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.console_log import LogLevel, configured_format, configured_levels
from tidewheel.streams.errors import ConfigError
from tidewheel.streams.processes.watchdog.hello import Hello
from tidewheel.streams.worker.application.application import Application
from tidewheel.streams.worker.application.wiring import range_threads, shared_options
from tidewheel.streams.worker.group_membership import member_name, partition_counts, seen_tasks
from tidewheel.tasks.kafka.internal_topics import ApplicationPlan

#: Space in a message for the watchdog's additions and for topics created later.
_SPARE_BYTES: Final = 8 * 1024


def make_hello(
    application: Application,
    plan: ApplicationPlan,
    slot: StateDirectory,
    *,
    incarnation: str,
    process_id: str,
    alone: bool,
    on_disk: tuple[DiskCopy, ...],
) -> Hello:
    """Return a worker's first message to the watchdog; `incarnation` must be a new id."""
    config = application.config
    return Hello(
        join=fitting(_join(application, plan, slot, incarnation, process_id, on_disk, alone=alone)),
        coordinator=CoordinatorSettings(**shared_options(config, CoordinatorSettings)),
        import_path=tuple(sys.path),
        log_level=log_level_here(),
        log_format=configured_format(),
        log_levels=configured_levels(),
        **shared_options(config, Hello),
    )


def log_level_here() -> LogLevel:
    effective = logging.getLogger("tidewheel").getEffectiveLevel()
    if effective <= logging.DEBUG:
        return "debug"
    if effective <= logging.INFO:
        return "info"
    return "warning" if effective <= logging.WARNING else "error"


def _join(
    application: Application,
    plan: ApplicationPlan,
    slot: StateDirectory,
    incarnation: str,
    process_id: str,
    on_disk: tuple[DiskCopy, ...],
    *,
    alone: bool,
) -> JoinGroup:
    config = application.config
    return JoinGroup(
        app=config.application_id,
        member=member_name(config.group_instance_id, slot.member_id, slot.slot, alone=alone),
        incarnation=incarnation,
        transactional_ids=(transactional_id(config, incarnation, 0),),
        host=socket.gethostname(),
        pid=os.getpid(),
        process_id=process_id,
        endpoint=application.endpoint,
        rack=config.rack_id,
        tags=dict(config.client_tags),
        threads=range_threads(config),
        static=config.group_instance_id is not None,
        slot=slot.slot,
        topology_hash=application.topology_hash.hex(),
        assignor=config.task_assignor,
        protocol=(max(PROTOCOL_MIN, required_version(config.partition_shards)), PROTOCOL_MAX),
        tasks=seen_tasks(plan, config.application_id),
        partitions=partition_counts(plan),
        on_disk=tuple(copy for copy in on_disk if not isinstance(copy, ShardCopy)),
        shards=cast("ShardCount", config.partition_shards),
        shards_on_disk=tuple(copy for copy in on_disk if isinstance(copy, ShardCopy)),
        session_timeout_ms=config.session_timeout_ms,
        rejoin_timeout_ms=config.rejoin_timeout_ms,
    )


def fitting(join: JoinGroup) -> JoinGroup:
    """Return a join that fits the inbox's message limit (bytes), with fewer copies on disk if needed.

    These only improve the assignment. Raises `ConfigError` if the tasks alone are too many.
    """
    limit = MESSAGE_BYTES_MAX - _SPARE_BYTES
    while (size := len(encode_message(join))) > limit:
        if not (join.on_disk or join.shards_on_disk):
            raise ConfigError(
                f"{join.app} has {len(join.tasks)} tasks, too many for a group: a worker names them all when it joins, which "
                f"takes {size:,} bytes where {limit:,} are allowed. Give topics fewer partitions, split the application, or place "
                "tasks by hand (--fixed-assignment)"
            )
        join = msgspec.structs.replace(
            join,
            on_disk=join.on_disk[: len(join.on_disk) // 2],
            shards_on_disk=join.shards_on_disk[: len(join.shards_on_disk) // 2],
        )
    return join


def transactional_id(config: StreamsConfig, incarnation: str, number: int) -> str:
    return group_id(config.application_id, incarnation, number)
