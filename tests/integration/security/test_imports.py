"""Names in topics import nothing: each process of a group records its imports."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Producer

from tests.integration.cluster import Cluster
from tests.streams.cli.command_runs import ROOT, Command

pytestmark = [pytest.mark.nightly("TIDEWHEEL_FAULTS"), pytest.mark.fault("SECURITY")]

_EVIL: Final = "evil_of_topics"
#: Records each search for a module, and each class of a pickle. `importlib.import_module` raises
#: no audit event, so a finder records imports.
_HOOK: Final = """
import os, sys

_file = os.open(os.path.join({folder!r}, f"{{os.getpid()}}.audit"), os.O_CREAT | os.O_APPEND | os.O_WRONLY)

class _Finder:
    def find_spec(name, path=None, target=None):
        os.write(_file, f"import {{name}}\\n".encode())

def _hook(event, arguments):
    if event == "pickle.find_class":
        os.write(_file, f"{{event}} {{arguments}}\\n".encode())

sys.meta_path.insert(0, _Finder)
sys.addaudithook(_hook)
"""
_PROGRAM: Final = """
from tidewheel import StreamsBuilder


def topology():
    builder = StreamsBuilder()
    counted = builder.stream({source!r}, key_serde=str, value_serde=str).group_by_key()
    counted.count(store="counts")
    return builder


config = {{
    "application_id": {app!r}, "commit_interval_ms": 50, "settling_ms": 0,
    "deserialization_exception_handler": "continue", "dead_letter_queue_topic": {dead!r},
    "task_assignor": {assignor!r},
}}
"""
_ASSIGNOR: Final = "tidewheel.rebalance.assignors.sticky:StickyAssignor"
#: Values that select code in other systems: a class name, a pickle, a YAML tag, a Java object.
_PAYLOADS: Final = (
    f"{_EVIL}:Evil".encode(),
    f"{_EVIL}.Evil".encode(),
    f"c{_EVIL}\nEvil\n(tR.".encode(),
    f"!!python/object/apply:{_EVIL}.Evil []".encode(),
    json.dumps({"@class": f"{_EVIL}.Evil", "py/object": f"{_EVIL}.Evil"}).encode(),
    b"\xac\xed\x00\x05sr\x00" + _EVIL.encode(),
    b"\x80\x04\x8c\x0e" + _EVIL.encode() + b"\x8c\x04Evil\x93)R.",
)
_HEADERS: Final = (
    "__TypeId__", "serde", "assignor", "__streams.errors.exception", "python.class",
)  # fmt: skip


def _forged(value: Any) -> Iterator[Any]:
    """Yield copies of a JSON value, each with one text replaced by the name of a module."""
    if isinstance(value, str):
        yield f"{_EVIL}:Evil"
        yield f"{_EVIL}.Evil"
    elif isinstance(value, dict):
        for key, inner in value.items():
            for other in _forged(inner):
                yield {**value, key: other}
    elif isinstance(value, list):
        for index, inner in enumerate(value[:3]):
            for other in _forged(inner):
                yield [*value[:index], other, *value[index + 1 :]]


def _forge_topic(cluster: Cluster, producer: Producer, topic: str) -> int:
    """Write forged copies of the first records of each kind; return their number."""
    kinds: dict[tuple[str, str], tuple[bytes, Any]] = {}
    for record in cluster.read(topic):
        value = json.loads(record.value or b"null")
        if isinstance(value, dict):
            kind = (str(value.get("type", value.get("t", sorted(value)))), topic)
            kinds.setdefault(kind, (record.key, value))
    copies = [
        (key, json.dumps(forged).encode())
        for key, value in kinds.values()
        for forged in itertools.islice(_forged(value), 60)
    ]
    for key, value in copies:
        producer.produce(topic, value, key, 0)
    for payload in _PAYLOADS:
        producer.produce(topic, payload, payload, 0)
    producer.flush(60)
    return len(copies)


@pytest.mark.timeout(600)
def test_names_in_topics_import_nothing(cluster: Cluster, unique: str, tmp_path: Path) -> None:
    app, source, dead = f"app-{unique}", f"in-{unique}", f"dead-{unique}"
    cluster.create({source: 2, dead: 1})
    (tmp_path / "sitecustomize.py").write_text(_HOOK.format(folder=str(tmp_path)))
    (tmp_path / f"{_EVIL}.py").write_text("class Evil: ...\n")
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM.format(source=source, app=app, dead=dead, assignor=_ASSIGNOR))
    servers = ("--bootstrap-servers", cluster.bootstrap_servers)
    environment = {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    arguments = (f"{program}:topology", *servers, "--state-dir", str(tmp_path / "state"))
    with Command("run", *arguments, "--workers", "2", environment=environment) as run:
        run.until_said("REBALANCING -> RUNNING", 2)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        for payload in _PAYLOADS:
            headers: list[tuple[str, str | bytes | None]] = [(name, payload) for name in _HEADERS]
            producer.produce(source, payload, payload, headers=headers)
            producer.produce(source, b"\xff" + payload, payload, headers=headers)
        producer.flush(60)
        state, inbox = f"{app}-group-state", f"{app}-group-inbox"
        assert _forge_topic(cluster, producer, state) > 20
        assert _forge_topic(cluster, producer, inbox) > 20
        cluster.wait_until_consumed(app, source)
        for pid in run.workers[:2]:
            run.kill_worker(pid)  # the next lives read the forged records from the beginning
        run.until_said("started (process", 4)
        cluster.send(source, [(b"k", b"later")] * 10)
        cluster.wait_until_consumed(app, source)
        for command in (("status",), ("group", "history")):
            with Command(*command, app, *servers, environment=environment) as shown:
                assert shown.wait() in (0, 1), shown.said  # 1: it has alarms
        run.signal(2)
        assert run.wait() == 0, run.said
    audits = {path.name: path.read_text() for path in tmp_path.glob("*.audit")}
    assert [name for name, text in audits.items() if _EVIL in text] == []
    assert [name for name, text in audits.items() if "pickle.find_class" in text] == []
    # Supervisor, watchdog, four workers, two commands: each with the hook.
    assert sum("import tidewheel" in text for text in audits.values()) >= 8
