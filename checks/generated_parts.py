"""Keeps what documents say of the code equal to the code: `python -m checks.generated_parts [--write]`.

A generated part stands between `<!-- generated: NAME -->` and `<!-- /generated: NAME -->`. Without `--write` nothing is
changed, and a part that is out of date is an error. `make check` finds it too, by the test of this module.
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from checks.repository_files import ROOT
from tidewheel import RocksDBOptions, StreamsConfig
from tidewheel.state_stores.rocksdb.options import meanings
from tidewheel.streams.config.display import attribute_docstrings, displayed
from tidewheel.streams.exit_codes import markdown_table

_MIB: Final = 1024 * 1024

#: The settings page's sections. Every option stands in one of them.
SECTIONS: Final[dict[str, tuple[str, ...]]] = {
    "Application": ("application_id", "bootstrap_servers", "processing_guarantee", "commit_interval_ms"),
    "Parallelising factor": ("parallelising_factor", "num_stream_threads"),
    "Input": (
        "auto_offset_reset", "accept_offsets", "max_poll_records", "buffered_bytes_per_partition", "buffered_records_per_partition",
        "max_task_idle_ms",
    ),
    "State": (
        "state_dir", "state_dir_exclusive", "state_cleanup_delay_ms", "statestore_cache_max_bytes",
        "statestore_uncommitted_max_bytes", "default_interactive_query_isolation_level", "interactive_query_timeout_ms", "rocksdb",
        "snapshot_location",
    ),
    "Topology and topics": (
        "default_key_serde", "default_value_serde", "ensure_explicit_naming", "default_timestamp_extractor",
        "processor_wrapper_class", "dsl_store_suppliers", "dsl_store_format",
        "topology_optimization", "emit_interval_ms", "replication_factor", "repartition_topic_config", "repartition_purge_interval_ms",
    ),
    "Errors": (
        "deserialization_exception_handler", "processing_exception_handler",
        "processing_exception_handler_global_enabled", "production_exception_handler",
        "dead_letter_queue_topic", "late_records_to_dead_letter_queue",
    ),
    "Groups": (
        "group_instance_id", "rejoin_timeout_ms", "drain_timeout_ms", "num_standby_replicas", "max_warmup_replicas",
        "acceptable_recovery_lag", "settling_ms", "task_move_interval_ms", "task_assignor", "rack_id", "client_tags", "input_partitioners",
        "application_server",
        "heartbeat_interval_ms", "session_timeout_ms", "worker_hang_timeout_ms",
        "max_call_ms",
    ),
    "Kafka clients": ("consumer", "producer", "admin"),
}  # fmt: skip

#: Defaults that depend on the machine, as the page says them.
_SAID: Final = {"state_dir": "`~/.local/state/tidewheel`"}


def settings_table() -> str:
    """Return a table for each section of settings."""
    parts: list[str] = []
    for section, options in SECTIONS.items():
        rows = [_row(option) for option in options]
        parts += [
            f"### {section}",
            "",
            "| option | default | meaning |",
            "|---|---|---|",
            *rows,
            "",
        ]
    return "\n".join(parts).rstrip()


def _row(option: str) -> str:
    field = StreamsConfig.model_fields[option]
    if field.is_required():
        default = "required"
    else:
        default = _SAID.get(option) or _shown(option, field.get_default(call_default_factory=True))
    return f"| `{option}` | {default} | {_cell(attribute_docstrings(StreamsConfig)[option])} |"


def _shown(option: str, value: Any) -> str:
    """Return a default as people write it."""
    if option == "rocksdb":
        return "[below](#rocksdb)"
    value = displayed(option, value)
    if value is None:
        return "none"
    if value == {}:
        return "empty"
    if option.endswith("_bytes") or "_bytes_" in option:
        return _size(value)
    if option.endswith("_ms") and isinstance(value, int):
        return f"{value:,} ms"
    return f"`{value}`" if isinstance(value, str | bool) else f"{value:,}"


def _size(size_bytes: int) -> str:
    if size_bytes and size_bytes % _MIB == 0:
        return f"{size_bytes // _MIB} MiB"
    return (
        f"{size_bytes // 1024} KiB"
        if size_bytes and size_bytes % 1024 == 0
        else f"{size_bytes:,} bytes"
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def rocksdb_table() -> str:
    """Return a table of RocksDB's options, from the docstring of `RocksDBOptions`."""
    told = meanings()
    rows = [
        f"| `{field.name}` | {_shown(field.name, field.default)} | {_cell(told[field.name])} |"
        for field in dataclasses.fields(RocksDBOptions)
    ]
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *rows])


#: Name of a part -> the document it stands in, and what makes it.
PARTS: Final[dict[str, tuple[str, Callable[[], str]]]] = {
    "settings": ("docs/configuration.md", settings_table),
    "rocksdb": ("docs/configuration.md", rocksdb_table),
    "exit-codes": ("docs/running.md", markdown_table),
}


def with_part(text: str, name: str, part: str) -> str:
    """Return a document's text with one generated part put in.

    Raises:
        ValueError: The document does not have both markers, in order, once.
    """
    start, end = f"<!-- generated: {name} -->", f"<!-- /generated: {name} -->"
    if text.count(start) != 1 or text.count(end) != 1 or text.index(start) > text.index(end):
        raise ValueError(f"the document needs one {start} and after it one {end}")
    head, rest = text.split(start)
    return f"{head}{start}\n\n{part}\n\n{end}{rest.split(end)[1]}"


def outdated(root: Path = ROOT) -> Iterator[tuple[Path, str, str]]:
    """Yield (document, part, the document's text as it should be) for every part that is not as the code has it."""
    for name, (document, make) in PARTS.items():
        # Read anew for each part: the caller may have written another part of the same document meanwhile.
        path = root / document
        text = path.read_text(encoding="utf-8")
        wanted = with_part(text, name, make())
        if wanted != text:
            yield path, name, wanted


def main(arguments: Sequence[str] | None = None) -> int:
    """Check the parts, or write them; 1 if one is out of date."""
    write = "--write" in (sys.argv[1:] if arguments is None else arguments)
    found = 0
    for path, name, wanted in outdated():
        found += 1
        if write:
            path.write_text(wanted, encoding="utf-8")
        done = "written" if write else "out of date; run `python -m checks.generated_parts --write`"
        print(f"{path.relative_to(ROOT)}: {name}: {done}")
    if not found:
        print(f"{len(PARTS)} generated parts of documents are up to date")
    return 1 if found and not write else 0


if __name__ == "__main__":
    sys.exit(main())
