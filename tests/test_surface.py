"""The public surface: exactly these names, each with a docstring, behind a light import."""

import inspect
import subprocess
import sys

import pytest
from results.redesign import inventory

import equipoise

NAMES = {"Audit", "BadInput", "Candidate", "Cohort", "EquipoiseError", "Goal", "Parts", "Scores", "Training", "__version__"}
NAMES |= {
    "Bundle",
    "Comparison",
    "audit",
    "check_scores",
    "compare",
    "debias",
    "history",
    "load",
    "predictor",
    "read_audit",
    "scan",
    "split",
}
NAMES |= {"train"}
HEAVY = ["torchvision", "matplotlib", "altair", "vl_convert", "plotly", "ray", "pydantic", "typer", "rich"]
IMPORT = f"""
import random, sys
import numpy, torch
states = lambda: (random.getstate(), numpy.random.get_state()[1].tolist(), torch.initial_seed())
before = states()
import equipoise
print([name for name in {HEAVY} if name in sys.modules], states() == before)
"""


def test_the_public_names_are_these():
    assert set(equipoise.__all__) == NAMES


@pytest.mark.parametrize("name", sorted(NAMES - {"__version__"}))
def test_every_public_name_has_a_docstring_of_its_own(name):
    text = getattr(equipoise, name).__doc__
    assert text
    assert not text.startswith(f"{name}(")  # what a dataclass makes up


@pytest.mark.parametrize("name", sorted(name for name in NAMES if inspect.isclass(getattr(equipoise, name))))
def test_every_public_method_has_a_docstring(name):
    members = {k: v for k, v in vars(getattr(equipoise, name)).items() if not k.startswith("_")}
    methods = {k: v for k, v in members.items() if isinstance(v, (property, classmethod, staticmethod)) or inspect.isfunction(v)}
    assert [k for k, v in methods.items() if not v.__doc__] == []


def test_the_import_is_light_silent_and_seeds_nothing():
    ran = subprocess.run([sys.executable, "-W", "error", "-c", IMPORT], capture_output=True, text=True, check=False, timeout=120)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "[] True\n", "")


def test_no_command_option_setting_or_measure_of_earlier_versions_is_lost():
    """Each is still there, or `results/redesign/renamed.toml` says what it is called now."""
    before, after, renamed = inventory.stored()
    today = inventory.surface()
    assert len(today["options"]) > 150
    _, lost = inventory.compared(before, after | today, renamed)
    assert lost == []
    _, lost = inventory.compared(before, after | {**today, "options": today["options"][1:]}, renamed)
    assert len(lost) == 1
