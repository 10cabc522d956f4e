"""`ParquetFiles`: one file per flush and partition, at any fsspec location.

Protocol of a flush: write the rows to a hidden file, create the commit file of the position before
them, rename the hidden file. The commit file is created only if it does not exist, so of two
writers one wins; its creation is the commit. The next owner completes a rename that is missing.
"""

import io
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from tidewheel.rebalance.model import TopicPartition
from tidewheel.state_stores.failpoints import failpoint
from tidewheel.streams.errors import ConfigError, FencedError, StreamsError
from tidewheel.streams.sinks.arguments import Limits, imported
from tidewheel.streams.sinks.rows import POSITION_COLUMNS, ToRow, by_partition, default_row
from tidewheel.tasks.processing.api.sink import Sink, SinkBatch, SinkTaskInfo

#: Protocols whose files can be created only if they do not exist.
_EXCLUSIVE: Final = frozenset(
    {"file", "local", "memory", "s3", "s3a", "gs", "gcs", "abfs", "abfss", "az"}
)
_CODECS: Final = ("none", "snappy", "gzip", "brotli", "lz4", "zstd")
#: Readers of folders skip names that begin with an underscore.
_HIDDEN: Final = "_tidewheel"
_COMMIT: Final = ".json"
#: Commit files that stay: the last one, and the one before.
_KEPT: Final = 2


#: A name without folders: a commit file must not reach files elsewhere.
_Name = Annotated[str, msgspec.Meta(pattern=r"\A([A-Za-z0-9._-]+\.parquet)?\Z")]


class _Commit(msgspec.Struct, frozen=True, kw_only=True):
    """Content of a commit file: the next offset, and names of the hidden and the visible file."""

    next: Annotated[int, msgspec.Meta(ge=0)]
    task: str
    hidden: _Name = ""
    file: _Name = ""


class ParquetFiles(Sink):
    """Writes each flush of a partition as one Parquet file, at any location of fsspec.

    A file appears whole, and each record is in exactly one file, also after crashes. Names have the
    task, the partition, and the first and last offset. Positions are in the folder `_tidewheel`;
    other files may be moved, compacted or deleted. Records without a value are left out.

    Args:
        url: Folder, such as "s3://lake/orders" or "/data/orders". Locations: local disks, S3,
            Google Cloud Storage and Azure, which can create a file only if it is missing.
        schema: A `pyarrow.Schema`; it selects columns of the rows. Default: inferred from the first
            rows of each task; later rows with other columns are refused.
        to_row: `f(key, value)` -> mapping by column. Default: a value's own fields, or columns
            `key` and `value`.
        position_columns: Add the columns `_topic`, `_partition`, `_offset` and `_timestamp`.
        storage_options: Options of the fsspec file system.
        compression: "zstd", "snappy", "gzip", "brotli", "lz4" or "none".

    >>> ParquetFiles("/data/orders").target
    'ParquetFiles /data/orders'
    """

    batch_rows = 100_000
    batch_bytes = 64 * 1024 * 1024
    flush_every_ms = 60_000

    def __init__(
        self,
        url: str,
        *,
        schema: Any = None,
        to_row: ToRow = default_row,
        position_columns: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        compression: str = "zstd",
        batch_rows: int | None = None,
        batch_bytes: int | None = None,
        flush_every_ms: int | None = None,
        retries: int | None = None,
    ) -> None:
        self._pyarrow = imported("pyarrow", "ParquetFiles", "files")
        self._parquet = imported("pyarrow.parquet", "ParquetFiles", "files")
        self._fsspec = imported("fsspec", "ParquetFiles", "files")
        Limits("ParquetFiles", batch_rows, batch_bytes, flush_every_ms, retries).apply(self)
        self._url = str(url).rstrip("/")
        protocol = self._url.partition("://")[0] if "://" in self._url else "file"
        if protocol not in _EXCLUSIVE:
            raise ConfigError(
                f"ParquetFiles: {protocol}:// can't create a file only if it is missing, which exactly once needs; use one "
                f"of {', '.join(sorted(_EXCLUSIVE))}"
            )
        if not self._url:
            raise ConfigError(f"ParquetFiles: url={str(url)!r} must name a folder below the root")
        if compression not in _CODECS:
            raise ConfigError(
                f"ParquetFiles {self._url}: compression={compression!r} must be one of {', '.join(_CODECS)}"
            )
        if schema is not None and not isinstance(schema, self._pyarrow.Schema):
            raise ConfigError(
                f"ParquetFiles {self._url}: schema={schema!r} must be a pyarrow.Schema"
            )
        self._schema = schema
        if schema is not None and position_columns:
            self._schema = _with_position_columns(self._pyarrow, schema)
        self._selects = schema is not None
        self._to_row = to_row
        self._position_columns = position_columns
        self._storage_options = dict(storage_options or {})
        self._compression = compression
        self._batches: list[SinkBatch] = []
        self._stored: dict[TopicPartition, int] = {}

    @property
    def target(self) -> str:
        """Return the folder."""
        return f"ParquetFiles {self._url}"

    # -- positions -------------------------------------------------------------------------------

    def open(self, task: SinkTaskInfo) -> Mapping[TopicPartition, int]:
        """Complete the last commit of each partition, and return the positions."""
        self._connect()
        self._application, self._task_id = task.application_id, task.task_id
        self._owner = secrets.token_hex(8)
        self._batches = []
        if not self._is_local:
            self._check_exclusive()
        self._start = dict(task.start)
        self._stored = {}
        for at in sorted(task.start):
            commits = self._commits(at)
            if commits:
                path = f"{self._folder(at)}/{commits[-1]}"
                commit = self._read_commit(path)
                self._rename(at, commit)
                self._stored[at] = commit.next
        return self._stored

    def _connect(self) -> None:
        try:
            self._files, root = self._fsspec.core.url_to_fs(self._url, **self._storage_options)
        except ImportError as error:
            raise ConfigError(f"{self.target}: {error}; it serves this address") from error
        self._root = root.rstrip("/")
        if self._is_local:
            try:
                self._files.makedirs(self._root, exist_ok=True)
            except (FileExistsError, NotADirectoryError, PermissionError) as error:
                raise StreamsError(
                    f"{self.target}: the folder can't be made ({error}); correct url=, or the owner of the folder above"
                ) from error
            if not os.access(self._root, os.W_OK | os.X_OK):
                raise StreamsError(
                    f"{self.target}: this user can't write to the folder; correct its owner or mode, or url="
                )

    def _read_commit(self, path: str) -> _Commit:
        try:
            return msgspec.json.decode(self._files.cat_file(path), type=_Commit)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise StreamsError(
                f"{self.target}: the commit file {path} is damaged ({error}); restore it, or run `tidewheel reset "
                "MODULE:TOPOLOGY` and write all rows again"
            ) from error

    def _folder(self, at: TopicPartition) -> str:
        return f"{self._root}/{_HIDDEN}/{self._application}/{at.topic}-{at.partition}"

    def _names(self, at: TopicPartition) -> list[str]:
        folder = self._folder(at)
        self._files.invalidate_cache(folder)
        try:
            paths = self._files.ls(folder, detail=False)
        except FileNotFoundError:
            return []
        return sorted(str(path).rpartition("/")[2] for path in paths)

    def _commits(self, at: TopicPartition) -> list[str]:
        return [name for name in self._names(at) if name.endswith(_COMMIT)]

    # -- rows ------------------------------------------------------------------------------------

    def write(self, batch: SinkBatch) -> None:
        """Keep rows until the flush."""
        self._batches.append(batch)

    def flush(self, positions: Mapping[TopicPartition, int]) -> None:
        """Write a file for each partition with rows, and commit its position."""
        rows = by_partition(self._batches, self._to_row, position_columns=self._position_columns)
        tables: dict[TopicPartition, Any] = {}
        for at, part in rows.items():
            if len(part) or part.has_refused:
                table = part.table(self._pyarrow, self._schema, self.target, selects=self._selects)
                self._schema = table.schema
                tables[TopicPartition(*at)] = table
        for at, end in sorted(positions.items()):
            before = self._stored.get(at, self._start[at])
            if end > before:
                self._commit(at, before, end, tables.get(at))
                self._stored[at] = end
        self._batches = []

    def _commit(self, at: TopicPartition, before: int, end: int, table: Any) -> None:
        folder = self._folder(at)
        self._files.makedirs(folder, exist_ok=True)
        hidden = file = ""
        if table is not None:
            hidden = f"{before:020d}-{self._owner}.parquet"
            file = f"{self._task_id}-{at.topic}-{at.partition}-{before:020d}-{end - 1:020d}.parquet"
            self._write_file(f"{folder}/{hidden}", table)
        commit = _Commit(next=end, task=self._task_id, hidden=hidden, file=file)
        name = f"{before:020d}{_COMMIT}"
        try:
            self._create(f"{folder}/{name}", msgspec.json.encode(commit))
        except FileExistsError as error:
            raise self._fenced(at, before) from error
        names = self._names(at)
        commits = [other for other in names if other.endswith(_COMMIT)]
        if commits[-1] != name:
            # Ours was created in place of one that a later owner had cleaned up.
            self._files.rm_file(f"{folder}/{name}")
            raise self._fenced(at, before)
        failpoint("in_sink_flush")
        self._rename(at, commit)
        self._clean(folder, names, commits, name)

    def _fenced(self, at: TopicPartition, before: int) -> FencedError:
        return FencedError(
            f"{self.target}: another worker has committed the rows of {at} from offset {before}"
        )

    def _write_file(self, path: str, table: Any) -> None:
        data = io.BytesIO()
        self._parquet.write_table(table, data, compression=self._compression)
        with self._files.open(path, "wb") as file:
            file.write(data.getbuffer())
            if self._is_local:
                file.flush()
                os.fsync(file.fileno())

    @property
    def _is_local(self) -> bool:
        return "file" in (
            (self._files.protocol,)
            if isinstance(self._files.protocol, str)
            else self._files.protocol
        )

    def _create(self, path: str, data: bytes) -> None:
        """Create a whole file, or raise `FileExistsError`."""
        if not self._is_local:
            self._files.pipe_file(path, data, mode="create")
            return
        part = f"{path}-{self._owner}"
        with self._files.open(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(part, path)
        finally:
            Path(part).unlink()

    def _check_exclusive(self) -> None:
        """Raise `StreamsError` if the location replaces a file that must not exist."""
        path = f"{self._root}/{_HIDDEN}/{self._application}/check-{self._owner}"
        self._create(path, b"1")
        try:
            self._create(path, b"2")
        except FileExistsError:
            return
        finally:
            self._files.rm_file(path)
        raise StreamsError(
            f"{self.target}: the store has replaced a file that was to be created only if missing, so two workers could "
            "write the same rows; use a store that honours If-None-Match for PUT"
        )

    def _rename(self, at: TopicPartition, commit: _Commit) -> None:
        """Make a committed file visible; a file that is gone was renamed before."""
        if commit.hidden:
            hidden, file = f"{self._folder(at)}/{commit.hidden}", f"{self._root}/{commit.file}"
            with suppress(FileNotFoundError):
                if self._is_local:
                    Path(hidden).replace(file)
                else:
                    self._files.mv(hidden, file)

    def _clean(self, folder: str, names: list[str], commits: list[str], name: str) -> None:
        """Delete old commit files, and hidden files that can't be committed any more."""
        stale = [other for other in names if not other.endswith(_COMMIT) and other <= name]
        for other in (*commits[:-_KEPT], *stale):
            with suppress(FileNotFoundError):
                self._files.rm_file(f"{folder}/{other}")

    def reset(self, application_id: str) -> None:
        """Delete the application's positions; files with rows stay."""
        files, root = self._fsspec.core.url_to_fs(self._url, **self._storage_options)
        with suppress(FileNotFoundError):
            files.rm(f"{root.rstrip('/')}/{_HIDDEN}/{application_id}", recursive=True)


def _with_position_columns(pyarrow: Any, schema: Any) -> Any:
    for name, kind in POSITION_COLUMNS.items():
        if name not in schema.names:
            schema = schema.append(pyarrow.field(name, kind))
    return schema
