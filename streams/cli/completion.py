"""`tidewheel --install-completion`: the completion script of a shell, and its start-up file."""

import os
import shlex
import sys
from pathlib import Path
from typing import Final, Literal

from cyclopts import App

from tidewheel.streams.errors import ConfigError
from tidewheel.streams.exit_codes import ExitCode

Shell = Literal["bash", "zsh", "fish"]

#: First line of the block in `.zshrc`.
_ZSH_MARK: Final = "# tidewheel completion"
#: Works with an empty `.zshrc` and behind one that has run `compinit`.
_ZSH_BLOCK: Final = """
{mark}
fpath=({folder} $fpath)
(( $+functions[compdef] )) || {{ autoload -Uz compinit && compinit }}
autoload -Uz {function} && compdef {function} tidewheel
"""


def install_completion(app: App, *, shell: Shell | None = None) -> int:
    """Install the completion of commands and options for your shell.

    Args:
        shell: The shell; default: the one that runs this command.
    """
    chosen = shell or _detected()
    # Cyclopts' line for zsh has no effect without a `compinit` behind it.
    path = app.install_completion(shell=chosen, add_to_startup=chosen == "bash")
    edited = ""
    if chosen == "bash":
        edited = f", and a line in {Path.home() / '.bashrc'} loads it"
    elif chosen == "zsh" and not _is_found_by_oh_my_zsh(path):
        edited = f", and lines in {_edit_zshrc(path)} load it"
    sys.stdout.write(f"installed {path} for {chosen}{edited}; new shells use it\n")
    return ExitCode.OK


def _detected() -> Shell:
    from cyclopts.completion import detect  # noqa: PLC0415 - rarely needed

    try:
        found = detect.detect_shell()
    except detect.ShellDetectionError as error:
        raise ConfigError(
            f"the shell is unknown ({error}); add --shell bash, zsh or fish"
        ) from error
    if found == "powershell":
        raise ConfigError("the shell is PowerShell; add --shell bash, zsh or fish")
    return found


def _is_found_by_oh_my_zsh(script: Path) -> bool:
    """Return True for a script in the folder that oh-my-zsh gives to `compinit` itself."""
    custom = os.environ.get("ZSH_CUSTOM") or f"{os.environ.get('ZSH', '')}/custom"
    return script.parent == Path(custom) / "completions"


def _edit_zshrc(script: Path) -> Path:
    path = Path(os.environ.get("ZDOTDIR") or Path.home()) / ".zshrc"
    text = path.read_text(encoding="utf-8", errors="surrogateescape") if path.exists() else ""
    if _ZSH_MARK not in text.splitlines():
        block = _ZSH_BLOCK.format(
            mark=_ZSH_MARK, folder=shlex.quote(str(script.parent)), function=script.name
        )
        with path.open("a", encoding="utf-8") as file:
            file.write(block if not text or text.endswith("\n") else f"\n{block}")
    return path
