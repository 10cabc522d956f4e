"""The memory that all databases of a process share, also those of several threads and of lives one after another."""

import threading

from tidewheel.state_stores.rocksdb.options import RocksDBOptions
from tidewheel.state_stores.rocksdb.shared_resources import SharedResources


class ProcessMemory:
    """Gives out the block cache and the write-buffer budget; any thread may ask."""

    def __init__(self, options: RocksDBOptions) -> None:
        self._options = options
        self._lock = threading.Lock()
        self._databases = 0
        self._resources: SharedResources | None = None

    def resources(self, databases: int) -> SharedResources:
        """Return what is shared by this many databases; made anew only if there are more of them than ever before."""
        with self._lock:
            if self._resources is None or databases > self._databases:
                self._databases = databases
                self._resources = SharedResources.create(self._options, databases=databases)
            return self._resources
