"""Restore helpers of a program."""

import os
import sys

from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.processes.restore_helper.helper_messages import Begin
from tidewheel.streams.processes.restore_helper.helper_pool import RestoreHelperPool
from tidewheel.streams.worker.application.run_options import RunOptions
from tidewheel.streams.worker.worker_hello import log_level_here


def restore_helpers(config: StreamsConfig, options: RunOptions) -> RestoreHelperPool:
    def begin(run_bytes: int) -> Begin:
        return Begin(
            application_id=config.application_id,
            bootstrap_servers=config.bootstrap_servers,
            rack_id=config.rack_id,
            consumer=config.client_properties("consumer"),
            run_bytes=run_bytes,
            snapshot_location=config.snapshot_location,
            import_path=tuple(sys.path),
            log_level=log_level_here(),
        )

    return RestoreHelperPool(
        begin,
        snapshots=config.snapshot_location is not None,
        readers=_readers(os.cpu_count() or 1, options.workers),
    )


def _readers(cores: int, workers: int) -> int:
    """Return the most helper processes per worker; two already saturate a broker's connection.

    >>> _readers(8, 1), _readers(2, 1), _readers(2, 2), _readers(1, 1)
    (2, 2, 1, 1)
    """
    return max(min(cores // max(workers, 1), 2), 1)
