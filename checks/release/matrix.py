"""Tries the built wheel with each Python that is here: `make matrix`.

Every Python gets an environment without this repository on its path: the wheel and its own
dependencies run the README's example; then, with the extras, a part of the tests runs against the
installed package, and `tidewheel demo` once. A Python that is not installed is named, and is no
error; a named one (`--only 3.12`) is.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from checks.release.distribution import DIST, build
from checks.repository_files import ROOT

VERSIONS: Final = ("3.11", "3.12", "3.13", "3.14")
#: PySpark (456 MB) is left out; `java` comes only where the demo's Kafka needs it.
EXTRAS: Final = ("arrow", "avro", "files", "http", "iceberg", "jsonschema", "opentelemetry", "postgres", "protobuf", "web")  # fmt: skip
#: Folders that tests need. None has the package, so `import tidewheel` finds the installed one.
COPIED: Final = ("tests", "checks", "examples", "README.md", "pyproject.toml", "hatch_build.py")
TESTS: Final = (
    "tests/examples",
    "tests/state_stores/layout",
    "tests/state_stores/rocksdb",
    "tests/streams/cli/test_standard_streams.py",
    "tests/streams/dsl",
    "tests/streams/test_console_log.py",
    "tests/streams/serdes",
    "tests/streams/topology",
    "tests/tasks/processing",
)
_MARKERS: Final = "not (alone or broker or first or slow or spark)"
_ENVIRONMENT: Final = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PIP_CONSTRAINT", "PYTHONDONTWRITEBYTECODE")  # fmt: skip


class StepError(Exception):
    """A step of one Python failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    version: str
    path: str


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m checks.release.matrix")
    parser.add_argument("--only", nargs="+", choices=VERSIONS, default=[], metavar="VERSION")
    parser.add_argument("--wheel", type=Path, help="a built wheel; default: build one")
    parser.add_argument("--no-demo", action="store_true", help="without Kafka")
    options = parser.parse_args(arguments)
    only: list[str] = options.only
    wheel: Path = (options.wheel or build(DIST).wheel).resolve()
    present = {each.version: each for each in interpreters(only or VERSIONS)}
    failed = [
        version
        for version, interpreter in present.items()
        if not _passes(interpreter, wheel, runs_demo=not options.no_demo)
    ]
    missing = [version for version in only or VERSIONS if version not in present]
    for version in missing:
        print(f"Python {version}: not installed here, not tried")
    tried = [version for version in present if version not in failed]
    print(f"passed: {_list(tried)}; failed: {_list(failed)}; missing: {_list(missing)}")
    return 1 if failed or not present or (only and missing) else 0


def _list(versions: Sequence[str]) -> str:
    return ", ".join(versions) or "none"


def interpreters(versions: Iterable[str]) -> Iterator[Interpreter]:
    """Yield the first working interpreter of each version: on PATH, of pyenv, or of uv."""
    for version in versions:
        for candidate in _candidates(version):
            if _version(candidate) == version:
                yield Interpreter(version=version, path=candidate)
                break


def _candidates(version: str) -> Iterator[str]:
    for folder in os.get_exec_path():
        path = Path(folder) / f"python{version}"
        if os.access(path, os.X_OK):
            yield str(path)
    home = Path.home()
    for root in (
        Path(os.environ.get("PYENV_ROOT", home / ".pyenv")) / "versions",
        Path(os.environ.get("UV_PYTHON_INSTALL_DIR", home / ".local/share/uv/python")),
    ):
        yield from sorted(map(str, root.glob(f"*{version}.*/bin/python{version}")))


def _version(path: str) -> str | None:
    """Return the version that an interpreter reports; None if it does not run, as a pyenv shim."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        answer = subprocess.run(
            [path, "-c", code], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def _passes(interpreter: Interpreter, wheel: Path, *, runs_demo: bool) -> bool:
    print(f"Python {interpreter.version}: {interpreter.path}", flush=True)
    with tempfile.TemporaryDirectory(prefix=f"matrix-{interpreter.version}-") as folder:
        try:
            _Trial(interpreter, wheel, Path(folder)).run(runs_demo=runs_demo)
        except StepError as error:
            print(f"Python {interpreter.version}: {error}", file=sys.stderr)
            return False
    return True


class _Trial:
    """The steps of one Python, in a folder of its own."""

    def __init__(self, interpreter: Interpreter, wheel: Path, folder: Path) -> None:
        self._interpreter = interpreter
        self._wheel = wheel
        self._environment = folder / "environment"
        self._python = str(self._environment / "bin" / "python")
        self._work = folder / "work"

    def run(self, *, runs_demo: bool) -> None:
        """Raise `StepError` for the first step that fails."""
        self._work.mkdir()
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, self._work / name)
        self._step("environment", [self._interpreter.path, "-m", "venv", str(self._environment)])
        self._install("run")
        self._install_wheel("")
        self._check_origin()
        self._step("README", [self._python, "-m", "checks.markdown_examples", "README.md"])
        self._install("build", "test", *EXTRAS)
        self._install_wheel(f"[{','.join(EXTRAS)},testing]")
        self._step("pip check", [self._python, "-m", "pip", "check"])
        command = [self._python, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider"]
        self._step("tests", [*command, "-m", _MARKERS, *TESTS])
        if runs_demo:
            self._demo()

    def _install(self, *groups: str) -> None:
        """Install groups of the lock, by hash."""
        # From the repository: it has the lock. Nothing of it is imported but this room.
        self._step("lock", [self._python, "-m", "checks.install", *groups], folder=ROOT)

    def _install_wheel(self, extras: str) -> None:
        """Install the wheel; the lock must have brought all that its metadata asks for."""
        command = [
            self._python,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-index",
            "--force-reinstall",
        ]
        wheel = f"{self._wheel}{extras}"
        # Twice: a reinstallation with dependencies would fetch these again.
        self._step("wheel", [*command, "--no-deps", wheel])
        self._step("metadata", [*command[:-1], wheel])

    def _check_origin(self) -> None:
        code = "import tidewheel; print(tidewheel.__file__)"
        origin = self._step("import", [self._python, "-c", code], shown=False).strip()
        if not origin.startswith(str(self._environment)):
            raise StepError(f"tidewheel comes from {origin}, not from the wheel")

    def _demo(self) -> None:
        asked = [self._python, "-m", "tidewheel.streams.broker", "--missing-extras"]
        extras = self._step("broker", asked, shown=False).strip()
        if extras:
            self._install(*extras.split(","))
        self._step("demo", [str(self._environment / "bin" / "tidewheel"), "demo"])

    def _step(
        self, name: str, command: Sequence[str], *, folder: Path | None = None, shown: bool = True
    ) -> str:
        """Run a command; print its last line and return its output."""
        kept = {key: value for key, value in os.environ.items() if key not in _ENVIRONMENT}
        done = subprocess.run(
            command,
            cwd=folder or self._work,
            env=kept,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if shown else None,
            text=True,
            check=False,
        )
        if done.returncode:
            raise StepError(f"{name} failed with code {done.returncode}\n{done.stdout[-8000:]}")
        lines = done.stdout.strip().splitlines()
        if shown:
            print(f"  {name}: {lines[-1] if lines else 'done'}", flush=True)
        return done.stdout


if __name__ == "__main__":
    sys.exit(main())
