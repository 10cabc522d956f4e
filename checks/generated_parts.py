"""Generated parts of documents and sources: `python -m checks.generated_parts [--write]`.

Without `--write` an outdated part is an error.
"""

import ast
import dataclasses
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from checks.parts.errors import errors_table, exit_codes_table
from checks.parts.metrics import LEVELS, group_table, table_of
from checks.parts.pictures import (
    application_states,
    member_phases,
    packages,
    record_path,
    task_phases,
    task_states,
)
from checks.release.address import report_addresses
from checks.reliability_page import faults_table, figures_table, soaks_table
from checks.repository_files import ROOT
from tidewheel import RocksDBOptions, StreamsConfig
from tidewheel.state_stores.rocksdb.options import meanings
from tidewheel.streams.config.display import attribute_docstrings, displayed
from tidewheel.streams.config.streams_config import SECTIONS

_MIB: Final = 1024 * 1024

#: Keyword types of options whose check accepts more than the field's type.
_ACCEPTED: Final = {
    "milliseconds": "DurationOption",
    "size": "SizeOption",
    "check_serde": "SerdeOption",
    "check_handler": "HandlerOption",
    "checked_properties": "PropertiesOption",
    "check_servers": "str | Sequence[str]",
    "check_directory": "str | PathLike[str]",
    "check_location": "str | PathLike[str] | None",
    "check_assignor": "str | Callable[..., Any]",
    "check_optimization": 'Literal["all", "none"] | Collection[str]',
    "check_extractor": "TimestampExtractor | str | None",
    "check_wrapper": "type[ProcessorWrapper] | ProcessorWrapper | str | None",
    "check_store_suppliers": ("DslStoreType | type[DslStoreSuppliers] | DslStoreSuppliers | str"),
    "check_rocksdb": "RocksDBOptions | Mapping[str, Any]",
}

#: Defaults that depend on the machine.
_SHOWN_DEFAULTS: Final = {"state_dir": "`~/.local/state/tidewheel`"}


def settings_table() -> str:
    lines: list[str] = []
    for option in StreamsConfig.model_fields:
        if option in SECTIONS:
            lines += [
                "",
                f"### {SECTIONS[option]}",
                "",
                "| option | default | meaning |",
                "|---|---|---|",
            ]
        lines.append(_row(option))
    return "\n".join(lines).strip()


def keyword_types() -> str:
    """Return the body of `StreamsOptions`: each option with its keyword type.

    Types are texts of `fields.py`: a type checker needs them as source code.
    """
    fields = ast.parse((ROOT / "streams/config/fields.py").read_text(encoding="utf-8"))
    types = dict(filter(None, map(_keyword_type, fields.body)))
    config = ast.parse((ROOT / "streams/config/streams_config.py").read_text(encoding="utf-8"))
    options = [
        (node.target.id, node.annotation.attr)
        for node in ast.walk(config)
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and isinstance(node.annotation, ast.Attribute)
    ]
    return "\n".join(f"    {option}: {types[kind]}" for option, kind in options)


def _keyword_type(node: ast.stmt) -> tuple[str, str] | None:
    match node:
        case ast.Assign(
            targets=[ast.Name(id=name)],
            value=ast.Subscript(slice=ast.Tuple(elts=[value_type, check])),
        ):
            functions = [part.id for part in ast.walk(check) if isinstance(part, ast.Name)]
            accepted = [_ACCEPTED[function] for function in functions if function in _ACCEPTED]
            text = ast.unparse(value_type).replace("'", '"')
            return name, accepted[0] if accepted else text
        case _:
            return None


def _row(option: str) -> str:
    field = StreamsConfig.model_fields[option]
    if field.is_required():
        default = "required"
    else:
        default = _SHOWN_DEFAULTS.get(option) or _shown(
            option, field.get_default(call_default_factory=True)
        )
    return f"| `{option}` | {default} | {_cell(attribute_docstrings(StreamsConfig)[option])} |"


def _shown(option: str, value: Any) -> str:
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
    descriptions = meanings()
    rows = [
        f"| `{field.name}` | {_shown(field.name, field.default)} | {_cell(descriptions[field.name])} |"
        for field in dataclasses.fields(RocksDBOptions)
    ]
    return "\n".join(["| option | default | meaning |", "|---|---|---|", *rows])


def alerts_table() -> str:
    # Only pyright has types of yaml: an `ignore` for mypy is one too many for pyright.
    yaml: Any = import_module("yaml")
    rules = yaml.safe_load((ROOT / "deploy/grafana/alerts.yml").read_text(encoding="utf-8"))
    rows = [
        f"| `{rule['alert']}` | {rule['labels']['severity']} "
        f"| {_without_templates(rule['annotations']['summary'])} "
        f"| {_cell(rule['annotations']['next_step'])} |"
        for group in rules["groups"]
        for rule in group["rules"]
    ]
    return "\n".join(["| alert | severity | means | next step |", "|---|---|---|---|", *rows])


def _without_templates(text: str) -> str:
    """Name the parts that Prometheus fills in."""
    named = re.sub(r"\{\{ \$labels\.(\w+)[^}]*\}\}", r"*\1*", text)
    return _cell(re.sub(r"\{\{[^}]*\}\}", "*n*", named))


PARTS: Final[dict[str, tuple[str, Callable[[], str]]]] = {
    "settings": ("docs/configuration.md", settings_table),
    "options": ("streams/config/options.py", keyword_types),
    "rocksdb": ("docs/configuration.md", rocksdb_table),
    "errors": ("docs/guides/errors-and-exit-codes.md", errors_table),
    "exit-codes": ("docs/guides/errors-and-exit-codes.md", exit_codes_table),
    "alerts": ("docs/guides/monitoring.md", alerts_table),
    **{f"metrics-{level}": ("docs/guides/metrics.md", table_of(level)) for level in LEVELS},
    "metrics-group": ("docs/guides/metrics.md", group_table),
    "application-states": ("docs/running.md", application_states),
    "task-states": ("ARCHITECTURE.md", task_states),
    "packages": ("ARCHITECTURE.md", packages),
    "record-path": ("ARCHITECTURE.md", record_path),
    "task-phases": ("docs/internals/protocol.md", task_phases),
    "member-phases": ("docs/internals/protocol.md", member_phases),
    "faults": ("docs/reliability.md", faults_table),
    "figures": ("docs/reliability.md", figures_table),
    "report-addresses": ("SECURITY.md", report_addresses),
    "soaks": ("docs/reliability.md", soaks_table),
}


def with_part(text: str, name: str, part: str) -> str:
    """Return a document with one generated part replaced.

    Raises:
        ValueError: The document does not have both markers, in order, once.
    """
    is_python = f"# --- generated: {name}\n" in text
    start, end = (
        (f"    # --- generated: {name}\n", f"\n    # --- /generated: {name}\n")
        if is_python
        else (f"<!-- generated: {name} -->\n\n", f"\n\n<!-- /generated: {name} -->")
    )
    first, last = start.strip(), end.strip()
    if text.count(first) != 1 or text.count(last) != 1 or text.index(first) > text.index(last):
        raise ValueError(f"the document needs one {first} and after it one {last}")
    head, rest = text[: text.index(first)], text.partition(last)[2]
    return f"{head}{start.lstrip(' ')}{part}{end.rstrip()}{rest}"


def outdated(root: Path = ROOT) -> Iterator[tuple[Path, str, str]]:
    for name, (document, make) in PARTS.items():
        # Read for each part: the caller may have written another part of the same file.
        path = root / document
        text = path.read_text(encoding="utf-8")
        wanted = with_part(text, name, make())
        if wanted != text:
            yield path, name, wanted


def main(arguments: Sequence[str] | None = None) -> int:
    write = "--write" in (sys.argv[1:] if arguments is None else arguments)
    count = 0
    for path, name, wanted in outdated():
        count += 1
        if write:
            path.write_text(wanted, encoding="utf-8")
        done = "written" if write else "out of date; run `python -m checks.generated_parts --write`"
        print(f"{path.relative_to(ROOT)}: {name}: {done}")
    if not count:
        print(f"{len(PARTS)} generated parts are up to date")
    return 1 if count and not write else 0


if __name__ == "__main__":
    sys.exit(main())
