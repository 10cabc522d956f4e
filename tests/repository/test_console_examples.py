"""Commands, settings and JSON in documents: commands exist, with their options and extras."""

import importlib.util
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cyclopts import App, CycloptsError

from checks.markdown_examples import documents
from checks.repository_files import ROOT, code_blocks
from tidewheel import StreamsConfig
from tidewheel.streams.cli.app import build_app, command_names

#: A user's prompt, or root's before a program.
_PROMPT = re.compile(r"^(?:[\w-]*\$|#(?= (?:/|systemctl|tidewheel))) ")
_BETWEEN_COMMANDS = {"|", "||", "&&", ";", "&"}
_REDIRECTIONS = {"<", ">", ">>"}
_SPAN = re.compile(r"(?<!`)`(tidewheel [^`]*)`(?!`)")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
_EXTRAS = re.compile(r"(?:tidewheel|\.)\[([\w,-]+)\]")
_PAGES = [path for path in documents() if path.name != "CHANGELOG.md"]


class Command(NamedTuple):
    line: str
    words: list[str]


def commands(markdown: str) -> Iterator[Command]:
    """Yield the commands of all console blocks, without redirections."""
    for block in code_blocks(markdown):
        if block.language != "console":
            continue
        for line in re.sub(r"\\\n\s*", "", block.text).splitlines():
            if prompt := _PROMPT.match(line):
                yield from _split(line[prompt.end() :])


def _split(line: str) -> Iterator[Command]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    tokens = iter(lexer)
    for token in tokens:
        if token in _BETWEEN_COMMANDS:
            yield Command(line, words)
            words = []
        elif token in _REDIRECTIONS:
            next(tokens)
        else:
            words.append(token)
    yield Command(line, words)


def _is_synopsis(line: str) -> bool:
    return " [" in line or "..." in line or "…" in line


@cache
def _app() -> App:
    return build_app(whole=True)


def _named(words: list[str]) -> tuple[App, str] | None:
    """Return the app of the command that the words begin with, and its name."""
    for name in (" ".join(words[:2]), words[0] if words else ""):
        if name in command_names():
            app: Any = _app()
            for part in name.split():
                app = app[part]
            return app, name
    return None


def _options(app: App) -> set[str]:
    collection = app.assemble_argument_collection()
    return {name for argument in collection for name in argument.names} | {"--help"}


def _problems(command: Command) -> Iterator[str]:
    words = command.words
    for extras in _EXTRAS.findall(command.line):
        unknown = set(extras.split(",")) - _extras()
        if unknown:
            yield f"no such extra: {unknown}"
    if words[:2] == ["python", "-m"] and importlib.util.find_spec(words[2]) is None:
        yield f"no module {words[2]}"
    yield from (
        f"no file {word}"
        for word in words
        if re.match(r"(deploy|examples|docs)/", word.partition(":")[0])
        and not (ROOT / word.partition(":")[0]).exists()
        and word.partition(":")[0] not in _WRITTEN
    )
    if words and Path(words[0]).name == "tidewheel":
        yield from _problems_of_ours(command.line, words[1:])


#: Files that a page's own commands write.
_WRITTEN = {"deploy/compose/http_token"}


def _problems_of_ours(line: str, words: list[str]) -> Iterator[str]:
    found = _named(words)
    if found is None:
        if not words[0].startswith("-"):
            yield f"no command {' '.join(words[:2])}"
        return
    app, name = found
    if _is_synopsis(line):
        yield from (
            f"no option {option}" for option in _OPTION.findall(line) if option not in _options(app)
        )
        return
    try:
        _app().parse_args(words, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        yield f"{name}: {error}"
    for setting in (words[at + 1] for at, word in enumerate(words) if word == "--set"):
        option = setting.partition("=")[0].partition(".")[0]
        if option not in StreamsConfig.model_fields:
            yield f"no setting {option}"


@cache
def _families() -> set[str]:
    return {name.partition(" ")[0] for name in command_names()}


@cache
def _extras() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project["optional-dependencies"])


@pytest.mark.parametrize("page", _PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_of_a_page_can_be_called(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    found = [
        f"{command.line}: {problem}" for command in commands(text) for problem in _problems(command)
    ]
    for span in _SPAN.findall(text):
        words = span.split()[1:]
        named = _named([word for word in words if re.fullmatch(r"[a-z]+", word)][:2])
        if named is None:
            is_name = re.fullmatch(r"[a-z]+", words[0]) and words[0] not in _families()
            found += [f"{span}: no such command"] * bool(is_name)
        else:
            options = set(_OPTION.findall(span)) - _options(named[0])
            found += [f"{span}: no option {option}" for option in options]
    assert found == []


@pytest.mark.parametrize("page", _PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_json_of_a_page_can_be_read_and_toml_has_settings(page: Path) -> None:
    for block in code_blocks(page.read_text(encoding="utf-8")):
        if block.language == "json" and not block.text.endswith("…\n"):  # one that is cut short
            rest = block.text.strip()
            while rest:
                _, end = json.JSONDecoder().raw_decode(rest)
                rest = rest[end:].strip()
        elif block.language == "toml":
            StreamsConfig(application_id="page", **tomllib.loads(block.text))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("tidewheel rum shop.py:topology", "no command"),
        ("tidewheel run shop.py:topology --worker 2", "run:"),
        ("tidewheel run shop.py:topology --workers two", "run:"),
        ("tidewheel run shop.py:topology --set commit_interval=5", "no setting"),
        ("tidewheel run [MODULE:TOPOLOGY] [--worker N]", "no option"),
        ("pip install 'tidewheel[webb]'", "no such extra"),
        ("python -m benchmark throughput", "no module"),
        ("cat x | tidewheel produced", "no command"),
    ],
)
def test_a_wrong_command_is_found(line: str, problem: str) -> None:
    (found,) = [
        each for command in commands(f"```console\n$ {line}\n```\n") for each in _problems(command)
    ]
    assert found.startswith(problem)
