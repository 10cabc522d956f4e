"""Options that are accepted and checked ahead of the features they belong to; setting one is said to have no effect."""

from typing import Final

_GROUPS: Final = "groups with learner tasks"
_RANGES: Final = "key-range workers"

#: Options that are checked and kept, but that nothing reads yet: option -> what they come with. A test compares this with the code.
NOT_YET: Final = {
    "num_stream_threads": _RANGES,
    "parallelising_factor": _RANGES,
    "num_standby_replicas": _GROUPS,
    "max_warmup_replicas": _GROUPS,
    "acceptable_recovery_lag": _GROUPS,
    "heartbeat_interval_ms": _GROUPS,
    "session_timeout_ms": _GROUPS,
    "rejoin_timeout_ms": _GROUPS,
    "task_move_interval_ms": _GROUPS,
    "task_assignor": _GROUPS,
    "rack_id": _GROUPS,
    "client_tags": _GROUPS,
    "application_server": "queries between processes",
    "snapshot_location": "snapshots and bulk restore",
}
