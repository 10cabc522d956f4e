"""A program given by its path reaches processes that do not know the path, as executors."""

import importlib
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import msgspec
import pytest
from pyspark.serializers import CloudPickleSerializer

from tidewheel.state_stores.bulk_restore.spark.frames import PortableFunction
from tidewheel.streams.errors import StreamsError
from tidewheel.streams.processes.user_program import load_program

pytestmark = pytest.mark.spark

_ROOT = Path(__file__).parents[3]

_PROGRAM = """
import msgspec

from tidewheel import Serdes, StreamsBuilder


class Product(msgspec.Struct):
    name: str


def read(data):
    return SERDE.deserialize("", data).name


SERDE = Serdes.json(Product)


def topology():
    return StreamsBuilder()
"""

#: An executor, which knows only the packages.
_EXECUTOR = """
import sys
from pyspark.serializers import CloudPickleSerializer
carried = CloudPickleSerializer().loads(sys.stdin.buffer.read())
print(carried(b'{"name": "tea"}'))
"""


def test_a_class_of_a_program_is_imported_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"program_{tmp_path.name}"
    file = tmp_path / f"{name}.py"
    file.write_text(_PROGRAM)
    monkeypatch.setattr(sys, "path", list(sys.path))
    load_program(f"{file}:topology")
    carried: PortableFunction[str] = PortableFunction(sys.modules[name].read)
    executor = subprocess.run(
        [sys.executable, "-c", _EXECUTOR],
        input=CloudPickleSerializer().dumps(carried),  # type: ignore[no-untyped-call] # it has no types
        capture_output=True,
        cwd=_ROOT,
        env={**os.environ, "PYTHONPATH": str(_ROOT)},
        check=True,
    )
    assert executor.stdout.decode().strip() == "tea"

    file.unlink()
    sys.modules.pop(name)
    importlib.invalidate_caches()
    with pytest.raises(StreamsError, match=f"does not find '{name}'.*--py-files"):
        carried(b"")


def test_a_function_that_can_not_be_pickled_is_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    lock = threading.Lock()
    with pytest.raises(StreamsError, match=r"can't be sent to Spark's executors .*lock"):
        PortableFunction(lambda: lock)
    assert capfd.readouterr().err == ""


def test_a_class_that_executors_can_not_import_is_refused() -> None:
    class Price(msgspec.Struct):
        amount: int

    made_in_notebook = type("Note", (), {"__module__": "__main__"})
    for cls in (Price, made_in_notebook):
        with pytest.raises(StreamsError, match=rf"class .*{cls.__name__} .* module"):
            PortableFunction(partial(isinstance, cls))
