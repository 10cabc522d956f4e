"""Import of a user's program, and precedence of settings."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidewheel import ConfigError, StreamsConfig, Topology
from tidewheel.streams.processes.user_program import effective_config, load_program, named

PROGRAM = """
from tidewheel import StreamsBuilder, Topology

def build():
    builder = StreamsBuilder()
    builder.stream("in", key_serde=str, value_serde=str).to("out")
    return builder

topology = build().build()
builder = build()
number = 7
config = {"application_id": "shop", "commit_interval_ms": 200, "consumer": {"fetch.min.bytes": 7}}

def needs(argument):
    return topology

def returns_nothing():
    return None

def fails():
    raise TypeError("the user's own")
"""


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Program in its own folder, unloaded afterwards."""
    path = tmp_path / "shop_program.py"
    path.write_text(PROGRAM, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield path
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["topology", "builder", "build"])
def test_a_topology_a_builder_and_a_function_are_all_programs(program: Path, name: str) -> None:
    for module in (str(program), "shop_program.py", "shop_program"):
        assert load_program(f"{module}:{name}").topology().source_topics == ("in",)


def test_a_file_inside_a_package_is_imported_as_part_of_it(program: Path, tmp_path: Path) -> None:
    package = tmp_path / "shop_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "parts.py").write_text("from shop_program import topology as parts\n")
    (package / "job.py").write_text("from .parts import parts as topology\n")
    assert isinstance(load_program("shop_package/job.py:topology").topology(), Topology)
    assert "shop_package.job" in sys.modules
    assert program.exists()


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("shop_program.py:topolgy", "did you mean topology?"),
        ("shop_program.py", "it has shop_program.py:builder, shop_program.py:topology"),
        ("shop_progam.py:topology", "did you mean shop_program.py?"),
        ("shop_program.pyy:topology", "there is no module 'shop_program.pyy'"),
        ("nowhere:topology", "there is no module 'nowhere'"),
        ("./shop_programm:topology", "there is no module 'shop_programm'"),
        ("../shop_program:topology", "there is no module '../shop_program'"),
        ("/nowhere:topology", "there is no module '/nowhere'"),
        ("shop_program.py:", "it has shop_program.py:builder, shop_program.py:topology"),
        (
            "shop_program:number",
            "is of type int, not a Topology, a StreamsBuilder or a function that returns one; there is",
        ),
        ("shop_program:needs", "give its parameters defaults"),
        ("shop_program:returns_nothing", "is a `return builder` missing?"),
        (":topology", "names no module"),
        ("wc.py::topology", "names no module"),
    ],
)
def test_the_error_of_an_invalid_target_suggests_a_valid_one(
    program: Path, target: str, message: str
) -> None:
    assert program.exists()
    with pytest.raises(ConfigError, match=message.replace("?", r"\?")):
        load_program(target).topology()


def test_an_error_in_the_users_function_is_the_cause_of_the_config_error(program: Path) -> None:
    with pytest.raises(ConfigError, match="raised TypeError: the user's own") as caught:
        load_program(f"{program}:fails").topology()
    assert isinstance(caught.value.__cause__, TypeError)


def test_errors_name_the_line_of_the_users_code(program: Path, tmp_path: Path) -> None:
    (tmp_path / "raising.py").write_text("import json\n\njson.loads('{')\n")
    with pytest.raises(ConfigError, match=r"JSONDecodeError: .* \(raising\.py:3\)$"):
        load_program("raising.py:topology")
    (tmp_path / "misspelt.py").write_text("topology = (\n")
    with pytest.raises(ConfigError, match=r"SyntaxError: .* \(misspelt\.py:1\)$"):
        load_program("misspelt:topology")
    line = PROGRAM.splitlines().index('    raise TypeError("the user\'s own")') + 1
    with pytest.raises(
        ConfigError, match=rf"own, in fails\(\) \(shop_program\.py:{line}\); correct the function"
    ):
        load_program(f"{program}:fails").topology()


MISSPELT = """
from tidewheel import StreamsBuilder, TimeWindows

def stream():
    return StreamsBuilder().stream("in", key_serde=str, value_serde=str)

def method():
    stream().map_value(len)

def keyword():
    stream().map_values(len, nam="sizes")

def window():
    TimeWindows("1m", grase="5s")

def function():
    StreamBuilder()

def table():
    stream().to_table().to("out")

def nothing():
    stream().to("out")
"""


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        ("method", "did you mean map_values?"),
        ("keyword", "did you mean name?"),
        ("window", "did you mean grace?"),
        ("function", "did you mean StreamsBuilder?"),
        ("table", "write .to_stream().to(…)"),
        ("nothing", "is a `return builder` missing?"),
    ],
)
def test_a_misspelt_name_is_suggested(program: Path, function: str, advice: str) -> None:
    program.write_text(MISSPELT)
    with pytest.raises(ConfigError, match=re.escape(advice)):
        load_program(f"{program}:{function}").topology()


def test_a_misspelt_import_is_suggested(program: Path) -> None:
    program.write_text("from tidewheel import StreamBuilder\n")
    with pytest.raises(
        ConfigError, match=r"could not be imported: .*did you mean StreamsBuilder\?"
    ):
        load_program(f"{program}:topology")


def test_a_missing_dependency_of_a_program_is_named(program: Path, tmp_path: Path) -> None:
    (tmp_path / "needy.py").write_text("import not_installed_anywhere\n")
    with pytest.raises(ConfigError, match="it needs not_installed_anywhere"):
        load_program("needy:topology")
    assert program.exists()


def test_a_file_named_as_another_module_is_refused(program: Path, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("topology = None\n")
    with pytest.raises(ConfigError, match="give the file another name"):
        load_program("json.py:topology")
    assert program.exists()


def test_the_command_line_overrides_the_program_and_the_program_the_environment(
    program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEWHEEL_COMMIT_INTERVAL_MS", "300")
    monkeypatch.setenv("TIDEWHEEL_NUM_STANDBY_REPLICAS", "2")
    loaded = load_program(f"{program}:topology")
    assert loaded.config().commit_interval_ms == 200
    config = loaded.config({"commit_interval_ms": "1s", "consumer": {"fetch.max.bytes": "9"}})
    assert config.commit_interval_ms == 1_000
    assert config.num_standby_replicas == 2
    assert dict(config.consumer) == {"fetch.min.bytes": 7, "fetch.max.bytes": "9"}


def test_a_ready_config_keeps_its_sources_under_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "other.toml"
    file.write_text('commit_interval_ms = 7\nnum_standby_replicas = 3\nconsumer = {"a.b" = 1}\n')
    made = StreamsConfig(
        application_id="shop", commit_interval_ms=5, consumer={"fetch.min.bytes": 1}
    )
    assert effective_config(made).commit_interval_ms == 5
    config = effective_config(made, {"consumer": {"fetch.max.bytes": 2}})
    assert dict(config.consumer) == {"fetch.min.bytes": 1, "fetch.max.bytes": 2}
    config = effective_config(made, {}, str(file))
    assert (config.commit_interval_ms, config.num_standby_replicas) == (5, 3)
    assert dict(config.consumer) == {"fetch.min.bytes": 1, "a.b": 1}


@pytest.mark.parametrize("is_ready", [True, False])
def test_settings_of_the_command_line_are_named_so(is_ready: bool, tmp_path: Path) -> None:
    file = tmp_path / "other.toml"
    file.write_text("")
    given: dict[str, Any] = {"application_id": "shop", "consumer": {"client.rack": "a"}}
    made = StreamsConfig(**given) if is_ready else given
    overrides = {"commit_interval_ms": "5ms", "consumer": {"fetch.min.bytes": "2"}}
    for config_file in (None, str(file)):
        config = effective_config(made, overrides, config_file)
        names = ("commit_interval_ms", "consumer.fetch.min.bytes", "consumer.client.rack")
        assert [config.source_of(name) for name in names] == [
            "command line", "command line", "keyword",
        ]  # fmt: skip
        for wrong in ({"kafka": {"group.id": "x"}}, {"nope": "x"}):
            with pytest.raises(ConfigError, match=r"\(command line\)"):
                effective_config(made, wrong, config_file)


def test_a_name_may_be_set_in_any_source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert not named({}, {})
    assert named({"application_id": "a"}, {})
    assert named({}, {"application_id": "a"})
    assert named(StreamsConfig(application_id="a"), {})
    monkeypatch.setenv("TIDEWHEEL_APPLICATION_ID", "a")
    assert named({}, {})


def test_a_module_s_functions_of_start_and_stop_belong_to_the_program(program: Path) -> None:
    text = program.read_text()
    program.write_text(f"{text}\nasync def on_start(): ...\ndef on_stop(): ...\n")
    loaded = load_program(f"{program}:topology")
    assert loaded.on_start is not None
    assert loaded.on_start.__name__ == "on_start"
    assert loaded.on_stop is not None


def test_a_module_s_on_start_that_cannot_be_called_is_refused(program: Path) -> None:
    program.write_text(f"{program.read_text()}\ndef on_start(app): ...\n")
    with pytest.raises(ConfigError, match="on_start"):
        load_program(f"{program}:topology")
