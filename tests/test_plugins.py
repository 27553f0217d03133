"""Plug-ins: a package of somebody else and a file of the user, from the command line, in studies and in their workers."""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pandas as pd
import pytest

from equipoise.comparison import Provenance
from equipoise.disk import sha256
from equipoise.errors import BadInput
from equipoise.measures import MEASURES
from equipoise.methods import METHODS
from equipoise.methods.auto import AutoSettings
from equipoise.plugins import PLUGIN_FILES, load_plugin
from equipoise.report.panels import PANELS
from equipoise.studies import CATALOGUE, read_plan, read_rows, run_study
from support.command import Ran, ran
from support.facts import facts

CODE = """
from dataclasses import dataclass

from equipoise.measures import Measure, add_measure
from equipoise.methods import Data, Goal, Rng, Step, Steps, method
from equipoise.models import Repairable
from equipoise.report import SHARES, add_panels, share_panel
from equipoise.studies import CATALOGUE, Recipe, load


@dataclass(frozen=True)
class Settings:
    steps: int = 3


@method("WALK", settings=Settings, title="small random steps", in_auto=1)
def walk(model: Repairable, data: Data, goal: Goal, settings: Settings, rng: Rng) -> Steps:
    noise = rng("walk")
    for step in range(1, settings.steps + 1):
        model.perturb(noise, 0.02 * step)
        yield Step(step, progress=(step, settings.steps))


add_measure(Measure("HARM", meaning="difference in harm", short="harm", rates={"tpr": -0.8, "fpr": 0.2}))


def flagged(repair):
    curve = SHARES.curve("curve", [(0.0, 0.0), (1.0, 1.0)])
    return [share_panel("Share", "The share.", "threshold", "share", [curve])]


add_panels("Share flagged by PANEL", flagged)


def ward(n: int = 300, seed: int = 0):
    return load("loh", n=n, alpha=2.0, seed=seed)


CATALOGUE["WARD"] = Recipe("WARD", ward, "group", "one ward", "nobody", 300, 5)
"""
POINTS = ("methods", "measures", "data_sets", "panels")
BUILD = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
STUDY = """
name = "plugged"
about = "one split"
splits = 1
measures = ["HARM"]
training = {{ epochs = 2 }}

[[data]]
source = "{data}"
options = {{ n = 300 }}

[[methods]]
method = "standard"

[[methods]]
method = "WALK"
"""


def source(tag: str) -> str:
    """The code of a plug-in whose names end in a tag, so that several can be imported in one process."""
    named = {"WALK": f"walk-{tag}", "HARM": f"harm_{tag}", "WARD": f"ward-{tag}", "PANEL": tag}
    text = CODE
    for word, name in named.items():
        text = text.replace(word, name)
    return text


def study(tag: str, data: str) -> str:
    """A study of that plug-in's method, measure and data."""
    return STUDY.format(data=data).replace("WALK", f"walk-{tag}").replace("HARM", f"harm_{tag}")


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel of a package with a plug-in, and of one that cannot be imported, were unpacked."""
    place, target = tmp_path_factory.mktemp("package"), tmp_path_factory.mktemp("installed")
    for name, code in (("friendly_plugin", source("pkg")), ("broken_plugin", "import no_such_module")):
        folder = place / name
        folder.mkdir()
        (folder / f"{name}.py").write_text(code)
        points = "".join(f'\n[project.entry-points."equipoise.{kind}"]\nours = "{name}"\n' for kind in POINTS)
        (folder / "pyproject.toml").write_text(
            '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
            f'[project]\nname = "{name}"\nversion = "1.0"\n[tool.setuptools]\npy-modules = ["{name}"]\n{points}'
        )
        subprocess.run([sys.executable, "-c", BUILD, str(folder)], cwd=folder, capture_output=True, check=True)
        (wheel,) = folder.glob("*.whl")
        shutil.unpack_archive(wheel, target, "zip")
    return target


def commands(package: Path, *given: list[object]) -> list[Ran]:
    """Commands in one process of their own, in which the package is installed."""
    paths = [package, Path(__file__).parent, *map(Path, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))]
    script = "import json, sys; from support.command import ran; print(json.dumps([ran(*words) for words in json.loads(sys.argv[1])]))"
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(given, default=str)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        cwd=package,
        capture_output=True,
        text=True,
        check=True,
    )
    return [Ran(*one) for one in json.loads(done.stdout)]


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scores") / "scores.csv"
    rows = [(k % 2, 0.3 + 0.4 * (k % 3 == 0), "FM"[k // 2 % 2]) for k in range(240)]
    pd.DataFrame(rows, columns=["y", "p", "sex"]).to_csv(path, index=False)
    return path


def test_an_installed_package_is_used_by_name(package: Path, scores: Path, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(study("pkg", "ward-pkg"))
    audit, shown, listed, run, results, auto = commands(
        package,
        ["audit", scores, "--label", "y", "--score", "p", "--group", "sex", "--json"],
        ["debias", "--help"],
        ["data", "list"],
        ["study", "run", tmp_path / "study.toml", "--out", tmp_path / "out", "--workers", 2],
        ["study", "show", tmp_path / "out", "--json"],
        ["debias", scores, "--label", "y", "--score", "p", "--group", "sex", "--method", "walk-pkg", "--out", tmp_path / "repaired"],
    )
    assert audit.code == 0, audit.err
    found = json.loads(audit.out)
    assert found["harm_pkg"]["value"] == pytest.approx(-0.8 * found["eod"]["value"] + 0.2 * found["fpr_gap"]["value"])
    assert "broken_plugin" in audit.err  # what cannot be imported is left out
    assert {"walk-pkg", "harm_pkg"} <= set(re.findall(r"[\w-]+", shown.out))
    assert "ward-pkg" in listed.out
    assert run.code == 0, run.err
    assert {row["method"] for row in json.loads(results.out)["table"]} == {"standard", "walk-pkg"}
    assert auto.code == 2  # known, and in need of a network
    assert "network" in auto.err


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Path]:
    """A file with a plug-in; what it registers in this process is forgotten afterwards."""
    path = tmp_path / "my_plugin.py"
    path.write_text(source("file"))
    registries = [METHODS, MEASURES, CATALOGUE, PANELS, PLUGIN_FILES]
    with ExitStack() as stack:
        for registry in registries:
            stack.enter_context(patch.dict(registry))
        yield path


def test_a_file_is_imported_only_if_the_user_names_it(plugin: Path, scores: Path, tmp_path: Path) -> None:
    flags = ["--label", "y", "--score", "p", "--group", "sex", "--measure", "harm_file", "--json"]
    assert ran("audit", scores, *flags[:-1]).code == 2
    case = tmp_path / "case.toml"
    case.write_text(f'plugin = "{plugin}"\n[data]\ntable = "{scores}"\nlabel = "y"\nscore = "p"\ngroup = "sex"\n')
    assert ran("audit", case).code == 2  # a case file is data
    case.write_text(f'[data]\ntable = "{scores}"\nlabel = "y"\nscore = "p"\ngroup = "sex"\n')
    assert "harm_file" not in json.loads(ran("audit", case, "--json").out)
    done = ran("audit", case, "--json", "--plugin", plugin)
    assert Provenance.now().hashes[plugin.name] == sha256(plugin.read_bytes())
    assert "harm_file" in json.loads(done.out), done.err


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_machines_of_a_cluster_get_the_source_of_a_file(plugin: Path, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text(study("ray", "loh"))
    plugin.write_text(source("ray"))
    load_plugin(plugin)
    assert "walk-ray" in AutoSettings().order()  # as it asks for
    plan = read_plan(tmp_path / "study.toml")
    done = run_study(plan, tmp_path / "out", runner="ray", workers=1)
    assert set(read_rows(done)["method"]) == {"standard", "walk-ray"}
    plugin.write_text(source("ray").replace("0.02", "0.03"))  # another method under the same name is another study
    load_plugin(plugin)
    with pytest.raises(BadInput, match=facts("walk-ray")):
        run_study(plan, tmp_path / "out", runner="serial")


def test_what_cannot_be_imported_is_said(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(textwrap.dedent("x = 1\nundefined_name\n"))
    with pytest.raises(BadInput, match=facts(str(wrong), "undefined_name")):
        load_plugin(wrong)
    with pytest.raises(BadInput, match=facts("missing.py")):
        load_plugin(tmp_path / "missing.py")
    assert ran("audit", "a.csv", "--plugin").code == 2
    taken = tmp_path / "taken.py"
    taken.write_text('from equipoise.measures import Measure, add_measure\nadd_measure(Measure("eod", "x", "x", rates={"fpr": 1.0}))\n')
    with pytest.raises(BadInput, match=facts("eod")):
        load_plugin(taken)
