"""User programs for commands: `MODULE:TOPOLOGY` with its settings.

MODULE is an importable name or the path of a .py file. TOPOLOGY is a `Topology`, a
`StreamsBuilder`, or a function without parameters that returns one. The module may have `config`, a
`StreamsConfig` or a dict of its options. They count as constructor arguments: they win over the
environment and the settings file, and the command line wins over them. Its functions `on_start` and
`on_stop` are those of `KafkaStreams`.

Every mistake raises `ConfigError` with a suggestion.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final, cast

import msgspec

from tidewheel.state_stores.user_code import located, place_of
from tidewheel.streams.config import StreamsConfig
from tidewheel.streams.config.sources import (
    KEYWORD,
    Settings,
    collect,
    expanded,
    settings_file,
)
from tidewheel.streams.config.suggestions import did_you_mean
from tidewheel.streams.dsl.builder import StreamsBuilder
from tidewheel.streams.errors import ConfigError, StreamsError
from tidewheel.streams.processes.name_hints import name_hint
from tidewheel.streams.topology.topology import Topology
from tidewheel.streams.user_functions import Hook, checked_hook

_USUAL_NAME: Final = "topology"
_EXAMPLE: Final = "write MODULE:TOPOLOGY, such as app.py:topology or shop.orders:topology"


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """A loaded user program whose topology is not built yet.

    Attributes:
        target: Its `MODULE:TOPOLOGY`.
        source: The object that the target names.
        defaults: The module's `config`.
        module: Name of the module.
        on_start: The module's function of this name, which runs in each worker, or None.
        on_stop: As `on_start`.
    """

    target: str
    source: object
    defaults: StreamsConfig | Mapping[str, Any]
    module: str = ""
    on_start: Hook | None = None
    on_stop: Hook | None = None

    def config(
        self, overrides: Mapping[str, Any] | None = None, config_file: str | None = None
    ) -> StreamsConfig:
        return effective_config(self.defaults, overrides, config_file)

    def topology(self, config: StreamsConfig | None = None) -> Topology:
        program = self.source
        if not isinstance(program, Topology | StreamsBuilder):
            assert callable(program), "load_program checked that"
            program = _called(cast("Callable[[], object]", program), self.target)
        if isinstance(program, StreamsBuilder):
            return program.build(config)
        assert isinstance(program, Topology), "_called checked that"
        return program


def load_program(target: str) -> Program:
    """Import a program; raise `ConfigError` if it does not exist."""
    module_name, separator, name = target.rpartition(":")
    if not separator:
        module_name, name = target, ""
    if not module_name or ":" in module_name:
        raise ConfigError(f"{target!r} names no module; {_EXAMPLE}")
    module = _imported(module_name)
    if not name:
        candidates = ", ".join(f"{module_name}:{name}" for name in _candidates(module))
        hint = f"it has {candidates}" if candidates else _EXAMPLE
        raise ConfigError(f"{target!r} names a module but no topology in it; {hint}")
    source = getattr(module, name, None)
    if source is None:
        raise ConfigError(f"{module_name!r} has no {name!r}{_hint(name, module)}")
    if not (isinstance(source, Topology | StreamsBuilder) or callable(source)):
        raise ConfigError(
            f"{target!r} is of type {type(source).__name__}, not a Topology, a StreamsBuilder or a function that returns one"
            f"{_hint(name, module)}"
        )
    return Program(
        target=target,
        source=source,
        defaults=_defaults(module, module_name),
        module=module.__name__,
        on_start=_hook_of(module, module_name, "on_start"),
        on_stop=_hook_of(module, module_name, "on_stop"),
    )


def target_of(
    target: str | None, overrides: Mapping[str, Any], config_file: str | None = None
) -> str:
    """Return the target of a command, or that of the setting `topology`.

    Raises:
        ConfigError: Neither is given.
    """
    found = target or topology_setting(overrides, config_file)
    if found is None:
        raise ConfigError(
            f'which topology? {_EXAMPLE}, or set topology = "MODULE:TOPOLOGY" in tidewheel.toml'
        )
    return found


def topology_setting(overrides: Mapping[str, Any], config_file: str | None = None) -> str | None:
    """Return the setting `topology`, or None."""
    found = _collected({}, overrides, config_file).get("topology")
    return found if isinstance(found, str) and found else None


def effective_config(
    defaults: StreamsConfig | Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    config_file: str | None = None,
) -> StreamsConfig:
    """Merge a program's `config` with command-line options, which win; return the settings.

    Args:
        overrides: Command-line options; tables (`consumer`, ...) are merged key by key.
        config_file: Replaces the usual settings file.
    """
    changes = overrides or {}
    if isinstance(defaults, StreamsConfig):
        if config_file is None:
            return _changed(defaults, changes)
        defaults = _keywords(defaults)
    return StreamsConfig(_settings(defaults, changes, config_file))


def named(
    defaults: StreamsConfig | Mapping[str, Any],
    overrides: Mapping[str, Any],
    config_file: str | None = None,
) -> bool:
    """Return True if `config`, command line, environment or file sets `application_id`."""
    if isinstance(defaults, StreamsConfig):
        return True
    return "application_id" in _collected(defaults, overrides, config_file)


def _collected(
    defaults: Mapping[str, Any], overrides: Mapping[str, Any], config_file: str | None
) -> Mapping[str, Any]:
    return _settings(defaults, overrides, config_file).values


def _settings(
    defaults: Mapping[str, Any], overrides: Mapping[str, Any], config_file: str | None
) -> Settings:
    """Return the unchecked settings of a command."""
    file = settings_file(os.environ) if config_file is None else expanded(config_file)
    return collect(StreamsConfig.model_fields, defaults, file, command_line=overrides)


def _changed(config: StreamsConfig, overrides: Mapping[str, Any]) -> StreamsConfig:
    """Return a config with changed options; environment and file are not read again."""
    changes = collect(StreamsConfig.model_fields, {}, None, {}, command_line=overrides)
    values: dict[str, Any] = {name: getattr(config, name) for name in config.model_fields_set}
    names = [*values]
    for option, value in values.items():
        if isinstance(value, Mapping):
            names += [f"{option}.{key}" for key in cast("Mapping[str, Any]", value)]
    for option, value in changes.values.items():
        below = values.get(option)
        values[option] = (
            {**cast("Mapping[str, Any]", below), **cast("Mapping[str, Any]", value)}
            if isinstance(value, Mapping) and isinstance(below, Mapping)
            else value
        )
    origins = {name: config.source_of(name) for name in names}
    return StreamsConfig(Settings(values, origins | changes.origins))


def _keywords(config: StreamsConfig) -> dict[str, Any]:
    """Return the options passed to a config as keywords, which win over a settings file."""
    keywords: dict[str, Any] = {}
    for option in StreamsConfig.model_fields:
        value = getattr(config, option)
        if isinstance(value, Mapping):
            table = cast("Mapping[str, Any]", value)
            given_keys = {
                k: v for k, v in table.items() if config.source_of(f"{option}.{k}") == KEYWORD
            }
            if given_keys:
                keywords[option] = given_keys
        elif config.source_of(option) == KEYWORD:
            keywords[option] = value
    return keywords


def _imported(name: str) -> ModuleType:
    name = name.removeprefix("./")
    path = Path(name)
    try:
        if name.endswith(".py"):
            return _imported_file(path)
        # Make the working directory importable, as `python app.py` does.
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        return importlib.import_module(_dotted(name, path))
    except StreamsError:
        raise
    except ModuleNotFoundError as error:
        if error.name is None or not _is_part(error.name, path, name):
            raise ConfigError(
                f"{name!r} could not be imported: it needs {error.name or error}, which is not installed here{f' ({place})' if (place := place_of(error, libraries=True)) else ''}"
            ) from error
        raise ConfigError(f"there is no module {name!r}{_file_hint(path)}") from None
    except Exception as error:  # the user's module may raise anything
        raise ConfigError(
            f"{name!r} could not be imported: {located(error, libraries=True)}"
            f"{f'; {hint}' if (hint := name_hint(error)) else ''}"
        ) from error


def _dotted(name: str, path: Path) -> str:
    dotted = name.replace("/", ".")
    # An empty part, as in `.shop`, would be a relative import, which raises a TypeError.
    if not all(dotted.split(".")):
        raise ConfigError(f"there is no module {name!r}{_file_hint(path)}")
    return dotted


def _is_part(missing: str, path: Path, name: str) -> bool:
    module = path.stem if name.endswith(".py") else name.replace("/", ".")
    return module == missing or module.startswith(f"{missing}.")


def _imported_file(path: Path) -> ModuleType:
    file = path.absolute()
    if not _holds(file.is_file):
        raise ConfigError(f"there is no file {str(path)!r}{_file_hint(path)}")
    root, name = file.parent, file.stem
    while (root / "__init__.py").is_file():
        root, name = root.parent, f"{root.name}.{name}"
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    module = sys.modules.get(name)
    if module is not None and module.__file__ is not None and Path(module.__file__) == file:
        return module
    if module is not None or _names_other_file(name, file):
        raise ConfigError(
            f"{str(path)!r} has the name of another module, {name!r}; give the file another name"
        )
    return importlib.import_module(name)


def _names_other_file(name: str, file: Path) -> bool:
    """Return True if importing `name` would load another file than `file`."""
    spec = importlib.util.find_spec(name)
    return spec is None or spec.origin is None or Path(spec.origin) != file


def _defaults(module: ModuleType, name: str) -> StreamsConfig | Mapping[str, Any]:
    config = getattr(module, "config", {})
    if isinstance(config, StreamsConfig | Mapping):
        return cast("StreamsConfig | Mapping[str, Any]", config)
    if isinstance(config, ModuleType):  # a package's submodule named `config`
        return {}
    raise ConfigError(
        f"`config` of {name!r} is of type {type(config).__name__}; make it a StreamsConfig or a dict of its options, or "
        "give it another name"
    )


def _hook_of(module: ModuleType, name: str, hook: str) -> Hook | None:
    function = getattr(module, hook, None)
    if function is None or isinstance(function, ModuleType):
        return None
    try:
        return checked_hook(function, hook)
    except StreamsError as error:
        raise ConfigError(f"{name!r}: {error}, or rename it") from None


def _called(function: Callable[[], object], target: str) -> Topology | StreamsBuilder:
    try:
        result = function()
    except StreamsError:
        raise
    except (Exception, SystemExit) as error:
        inside = error.__traceback__ is not None and error.__traceback__.tb_next is not None
        if isinstance(error, TypeError) and not inside:
            raise ConfigError(
                f"{target!r} could not be called without arguments ({error}); give its parameters defaults"
            ) from None
        # `ConfigError` ends the command: after a restart the function would raise again.
        raise ConfigError(
            f"{target!r} raised {located(error, libraries=True)}; {name_hint(error) or 'correct the function'}"
        ) from error
    if result is None:
        raise ConfigError(
            f"{target!r} returned None: is a `return builder` missing? Return a Topology or a StreamsBuilder"
        )
    if not isinstance(result, Topology | StreamsBuilder):
        raise ConfigError(
            f"{target!r} returned an object of type {type(result).__name__}; return a Topology or a StreamsBuilder"
        )
    return result


def _candidates(module: ModuleType) -> list[str]:
    sure = [
        name for name, value in vars(module).items() if isinstance(value, Topology | StreamsBuilder)
    ]
    if callable(getattr(module, _USUAL_NAME, None)):
        sure.append(_USUAL_NAME)
    return sorted(set(sure))


def _hint(name: str, module: ModuleType) -> str:
    candidates = _candidates(module)
    names = [*candidates, *(variable for variable in vars(module) if not variable.startswith("_"))]
    near = did_you_mean(name, [variable for variable in names if variable != name])
    if near:
        return f"; {near}"
    return f"; there is {', '.join(candidates)}" if candidates else "; it has no topology"


def _file_hint(path: Path) -> str:
    if _holds(path.with_suffix(".py").is_file):
        return f"; did you mean {path.with_suffix('.py')}?"
    dotted = Path(*str(path).split(".")).with_suffix(".py") if path.suffix != ".py" else path
    if dotted != path and _holds(dotted.is_file):
        return f"; did you mean {dotted}?"
    if _holds(path.parent.is_dir):
        files = {file.name: file for file in path.parent.glob("*.py")}
        near = did_you_mean(path.name, files)
        if near:
            return f"; did you mean {path.parent / near.removeprefix('did you mean ')}"
    return "; give an importable name or the path of a .py file"


def _holds(check: Callable[[], bool]) -> bool:
    try:
        return check()
    except OSError:  # name too long
        return False
