"""The wheel holds every file that the package needs: code, types, templates, presets; and its metadata name the extras."""

import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Built from a copy, so that no folder of the checkout changes."""
    place = tmp_path_factory.mktemp("source")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, place)
    shutil.copytree(ROOT / "src", place / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    done = subprocess.run([sys.executable, "-c", BUILD, str(place / "dist")], cwd=place, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (path,) = (place / "dist").glob("*.whl")
    return zipfile.ZipFile(path)


def test_it_holds_every_file_of_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    source = ROOT / "src"
    ours = {path.relative_to(source).as_posix() for path in (source / "equipoise").rglob("*") if path.is_file()}
    ours = {name for name in ours if "__pycache__" not in name}
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == ours
    assert {"equipoise/py.typed", "equipoise/__init__.pyi", "equipoise/report/templates/page.html"} <= ours


def test_its_metadata_name_the_extras_the_command_and_the_readme(wheel: zipfile.ZipFile) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (folder,) = {name.split("/")[0] for name in wheel.namelist() if ".dist-info/" in name}
    metadata = Parser().parsestr(wheel.read(f"{folder}/METADATA").decode())
    assert metadata["Version"] == project["version"]
    assert set(metadata.get_all("Provides-Extra")) == set(project["optional-dependencies"])
    assert metadata.get_payload().strip() == (ROOT / "README.md").read_text(encoding="utf-8").strip()
    assert "equipoise = equipoise.cli:main" in wheel.read(f"{folder}/entry_points.txt").decode()


@pytest.mark.parametrize(
    ("package", "version"),
    [("torch", "2.12.1"), ("pillow", "12.3.0"), ("skops", "0.12.0"), ("jinja2", "3.1.5"), ("typer", "0.12.3"), ("typer", "0.15.4")],
)
def test_no_version_with_a_known_vulnerability_or_that_does_not_start_is_accepted(
    wheel: zipfile.ZipFile, package: str, version: str
) -> None:
    (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    stated = [Requirement(line) for line in Parser().parsestr(wheel.read(name).decode()).get_all("Requires-Dist", [])]
    bounds = [requirement.specifier for requirement in stated if requirement.name == package]
    assert bounds
    assert not any(version in bound for bound in bounds)


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f'__version__ = "{project["version"]}"' in (ROOT / "src/equipoise/__init__.py").read_text()
    assert f"version: {project['version']}\n" in (ROOT / "CITATION.cff").read_text()
