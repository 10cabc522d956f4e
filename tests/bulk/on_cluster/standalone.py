"""Spark's standalone cluster on this machine, whose executors have the installed package only."""

import os
import re
import signal
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyspark

from tests.integration.cluster import until
from tests.streams.cli.command_runs import ROOT
from tidewheel.streams.broker.java import find_java

WORKERS: Final = ("worker-1", "worker-2")
_HERE: Final = "127.0.0.1"
_SPARK: Final = Path(pyspark.__file__).parent
_DEPLOY: Final = "org.apache.spark.deploy"
_START_S: Final = 400.0
#: No task starts before both executors are there: one of them might do all of a short job.
_SETTINGS: Final = f"""
spark.driver.host {_HERE}
spark.master.rest.enabled false
spark.cores.max {len(WORKERS)}
spark.scheduler.minRegisteredResourcesRatio 1.0
spark.scheduler.maxRegisteredResourcesWaitingTime {_START_S:.0f}s
"""


@dataclass(frozen=True)
class StandaloneCluster:
    """A master and two workers of one core and 1 GiB each.

    Attributes:
        python: Python of drivers and executors; it has the wheel of this package, not the checkout.
        package: Folder of that package.
    """

    master: str
    python: Path
    package: Path
    environment: Mapping[str, str]

    def run(self, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run the Python, as a driver's, in a folder; its output is in the error of a failure."""
        done = subprocess.run(
            [str(self.python), *arguments],
            cwd=folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=_START_S,
        )
        assert done.returncode == 0, done.stderr + done.stdout
        return done


@contextmanager
def standalone_cluster(folder: Path) -> Iterator[StandaloneCluster]:
    """Yield a running cluster; its processes and their executors are killed at the end."""
    python, package = _installed(folder)
    (folder / "conf").mkdir()
    (folder / "conf" / "spark-defaults.conf").write_text(_SETTINGS)
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    environment = {
        **kept,
        "JAVA_HOME": str(find_java().home),
        # Four Javas live for seconds: the second compiler would not pay.
        "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "PYSPARK_PYTHON": str(python),
        "SPARK_CONF_DIR": str(folder / "conf"),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_DIRS": str(folder / "blocks"),
        "SPARK_LOCAL_IP": _HERE,
    }
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str) -> Path:
        log = folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [str(_SPARK / "bin" / "spark-class"), *arguments],
                cwd=folder,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        processes.append(process)
        return log

    ports = ("--host", _HERE, "--port", "0", "--webui-port", "0")
    try:
        log = start("master", f"{_DEPLOY}.master.Master", *ports)
        until(lambda: _address(log), "the master's address", _START_S)
        master = _address(log)
        for name in WORKERS:
            place = ("--work-dir", str(folder / name), "--cores", "1", "--memory", "1g")
            start(name, f"{_DEPLOY}.worker.Worker", *ports, *place, master)
        until(
            lambda: log.read_text().count("Registering worker") == len(WORKERS),
            "both workers are registered",
            _START_S,
        )
        yield StandaloneCluster(master, python, package, environment)
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(60)


def _address(log: Path) -> str:
    found = re.search(r"Starting Spark master at (spark://\S+)", log.read_text())
    return "" if found is None else found[1]


def _installed(folder: Path) -> tuple[Path, Path]:
    """Install the wheel into an environment that shares only the other packages with this one."""
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)]
    subprocess.run([*build, str(ROOT)], check=True, stdout=subprocess.DEVNULL)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", symlinks=True)
    (packages,) = (folder / "venv" / "lib").glob("python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    # Files .pth in that folder are not read, such as the one of this repository's checkout.
    (packages / "others.pth").write_text(f"{_SPARK.parent}\n")
    return folder / "venv" / "bin" / "python", packages / "tidewheel"
