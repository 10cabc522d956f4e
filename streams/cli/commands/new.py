"""`tidewheel new`: a project with a topology, its test, and all around them."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tidewheel.streams.cli.output import print_json, text_console
from tidewheel.streams.cli.project.files import write_project
from tidewheel.streams.exit_codes import ExitCode

_Flag = Annotated[bool, Parameter(negative=(), show_default=False)]


def new(name: str, /, *, directory: Path | None = None, json: _Flag = False) -> int:
    """Write a project: a topology, its test, settings, compose file, Dockerfile and CI workflow.

    Its test passes as it is, and `tidewheel run` in its folder runs it. Nothing is installed or
    started.

    Exit codes: 0 written; 1 the folder has files; 2 the name is unusable.

    Args:
        name: The project, such as order-totals; also its application id.
        directory: An empty or new folder; default: the name, in this one.
        json: Print JSON: the folder and the files.
    """
    folder = Path(name) if directory is None else directory
    files = write_project(folder, name)
    if json:
        print_json(
            {"directory": folder, "files": [str(path.relative_to(folder)) for path in files]}
        )
        return ExitCode.OK
    console = text_console()
    for path in files:
        console.print(str(path), markup=False, highlight=False)
    console.print(
        f"\nNext: cd {folder}, and the commands of README.md",
        markup=False,
        highlight=False,
    )
    return ExitCode.OK
