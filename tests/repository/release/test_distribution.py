"""The built wheel and source archive, and the README on an index page."""

import tarfile
import zipfile
from pathlib import Path

import pytest

from checks.release import distribution
from checks.release.address import repository
from checks.release.distribution import Distribution
from checks.repository_files import ROOT, repository_files
from hatch_build import index_page, urls


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    return distribution.build(tmp_path_factory.mktemp("built") / "dist")


def test_both_archives_have_the_files_of_the_package_and_no_others(built: Distribution) -> None:
    assert list(distribution.content_problems(built)) == []
    files = distribution.wheel_files(built.wheel)
    assert {"tidewheel/py.typed", "tidewheel/streams/dashboard/page/index.html"} <= files


def test_a_stray_and_a_missing_file_are_reported(built: Distribution, tmp_path: Path) -> None:
    changed = tmp_path / built.wheel.name
    with zipfile.ZipFile(built.wheel) as source, zipfile.ZipFile(changed, "w") as target:
        for name in source.namelist():
            if name != "tidewheel/py.typed":
                target.writestr(name, source.read(name))
        target.writestr("tests/test_x.py", "")
    problems = list(distribution.content_problems(Distribution(wheel=changed, sdist=built.sdist)))
    assert len(problems) == 2
    assert "tests/test_x.py" in problems[0]
    assert "tidewheel/py.typed" in problems[1]


def test_the_license_is_in_both_archives(built: Distribution) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        assert [name for name in wheel.namelist() if name.endswith("licenses/LICENSE")]
    with tarfile.open(built.sdist) as sdist:
        assert [name for name in sdist.getnames() if name.endswith("/LICENSE")]


def test_the_readme_is_right_on_an_index_page(built: Distribution) -> None:
    text = distribution.description(built.wheel)
    assert list(distribution.readme_problems(text)) == []
    assert f"]({repository()}/blob/v" in text
    assert f"]({repository()}/raw/v" in text
    assert "pip install ." not in text


@pytest.mark.parametrize(
    "text",
    [
        "[a](docs/index.md)",
        "[a](#nowhere)",
        "![a](docs/images/throughput.svg)",
        f"[a]({repository()}/blob/v1/docs/no-such-file.md)",
        f"[a]({repository()}/blob/v1/docs/index.md#no-such-heading)",
        "<!-- checkout only -->",
    ],
)
def test_faults_of_an_index_page_are_reported(text: str) -> None:
    assert len(list(distribution.readme_problems(text))) == 1


def test_links_become_absolute_and_parts_for_checkouts_are_left_out() -> None:
    text = (
        "[a](docs/a.md#b) ![c](docs/c.svg) [d](https://d.example/) [e](#e)\n"
        "<!-- checkout only -->\npip install .\n<!-- end -->\n\nend"
    )
    assert index_page(text, "https://h.example/r", "v1") == (
        "[a](https://h.example/r/blob/v1/docs/a.md#b) ![c](https://h.example/r/raw/v1/docs/c.svg) "
        "[d](https://d.example/) [e](#e)\nend"
    )


def test_the_project_addresses_name_files_of_the_repository(built: Distribution) -> None:
    addresses = distribution.project_urls(built.wheel)
    assert list(distribution.address_problems(addresses)) == []
    lost = [*addresses, f"{repository()}/blob/v1/no-such-file.md"]
    assert len(list(distribution.address_problems(lost))) == 1
    assert len(list(distribution.address_problems([]))) == 1


def test_all_project_addresses_come_from_the_setting() -> None:
    addresses = urls("https://h.example/r", "v1")
    assert addresses
    assert {
        address for address in addresses.values() if not address.startswith("https://h.example/r")
    } == set()


def test_the_address_is_written_in_one_place() -> None:
    named = [
        path.relative_to(ROOT).as_posix()
        for path in repository_files()
        if path.suffix in {".md", ".toml", ".yml", ".yaml", ".py"}
        and repository() in path.read_text(encoding="utf-8")
    ]
    # SECURITY.md has it as a generated part.
    assert set(named) <= {"pyproject.toml", "SECURITY.md"}
    assert "pyproject.toml" in named
