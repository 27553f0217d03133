"""The public surface: what `tests/surface.toml` lists and no more, each name with a docstring, behind a light import."""

import dataclasses
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import equipoise
from equipoise.cli.app import command_line
from equipoise.measures import MEASURES
from equipoise.methods import METHODS

LIST = Path(__file__).with_name("surface.toml")
DECISION = re.compile(r"kept|(added|dropped): \S.*|renamed to (?P<name>[^:]+)(: \S.*)?")
SIGNED: dict[str, dict[str, str]] = tomllib.loads(LIST.read_text(encoding="utf-8"))
HEAVY = ["torchvision", "matplotlib", "plotly", "ray", "pydantic", "typer", "rich"]
IMPORT = f"""
import random, sys
import numpy, torch
states = lambda: (random.getstate(), numpy.random.get_state()[1].tolist(), torch.initial_seed())
before = states()
import equipoise
print([name for name in {HEAVY} if name in sys.modules], states() == before)
"""


def options(command: Any, name: str = "equipoise") -> dict[str, set[str]]:
    """The options and `<arguments>` of a command and of those below it, by the words that call it."""
    given = [(parameter, option) for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)]
    found = {name: {option if parameter.param_type_name == "option" else f"<{parameter.name}>" for parameter, option in given}}
    for word, below in getattr(command, "commands", {}).items():
        found |= options(below, f"{name} {word}")
    return found


def surface() -> dict[str, set[str]]:
    """What the package offers today, by the sections of the list."""
    commands = options(command_line())
    return {
        "Python names": set(equipoise.__all__),
        "measures": set(MEASURES),
        "methods": set(METHODS),
        "settings of methods": {f"{name}.{f.name}" for name, method in METHODS.items() for f in dataclasses.fields(method.settings)},
        "commands": set(commands),
        **{f"options of {words}": given for words, given in commands.items() if given},
    }


def present(section: str) -> set[str]:
    """The names of a section that the list says exist today."""
    decided = SIGNED.get(section, {}).items()
    renamed = [DECISION.fullmatch(decision) for _, decision in decided]
    successors = {found["name"] for found in renamed if found and found["name"]}
    return successors | {name for name, decision in decided if decision.startswith(("kept", "added"))}


def test_what_is_offered_is_what_the_list_says():
    """A name that comes or goes is a decision: the message says which line to write for it."""
    today = surface()
    lines = []
    for section in sorted({*today, *SIGNED} - {"elsewhere"}):
        offered, signed = today.get(section, set()), present(section)
        lines += [f'["{section}"]  "{name}" = "added: WHY"' for name in sorted(offered - signed)]
        lines += [f'["{section}"]  "{name}" = "dropped: WHY" or "renamed to NAME"' for name in sorted(signed - offered)]
    assert lines == [], f"not as in {LIST.name}; decide, and write:\n" + "\n".join(lines)


def test_every_line_of_the_list_is_a_decision_and_in_order():
    wrong = [f"{section}: {name}" for section, names in SIGNED.items() for name, told in names.items() if not DECISION.fullmatch(told)]
    assert wrong == []
    assert [section for section, names in SIGNED.items() if list(names) != sorted(names)] == []


@pytest.mark.parametrize("name", sorted(present("Python names") - {"__version__"}))
def test_every_public_name_has_a_docstring_of_its_own(name):
    text = getattr(equipoise, name).__doc__
    assert text
    assert not text.startswith(f"{name}(")  # what a dataclass makes up


@pytest.mark.parametrize("name", sorted(name for name in equipoise.__all__ if inspect.isclass(getattr(equipoise, name))))
def test_every_public_method_has_a_docstring(name):
    members = {k: v for k, v in vars(getattr(equipoise, name)).items() if not k.startswith("_")}
    methods = {k: v for k, v in members.items() if isinstance(v, (property, classmethod, staticmethod)) or inspect.isfunction(v)}
    assert [k for k, v in methods.items() if not v.__doc__] == []


def test_the_import_is_light_silent_and_seeds_nothing():
    ran = subprocess.run([sys.executable, "-W", "error", "-c", IMPORT], capture_output=True, text=True, check=False, timeout=120)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "[] True\n", "")


OTHER_PROGRAMS = re.compile(
    r"--(help|nproc-per-node|nnodes|rdzv-.*|nodes|ntasks-per-node|gpus-per-node|cpus-per-task|strict|few-patients|(no-)?flag|dest|no-index|find-links)"
)


def test_pages_name_only_flags_that_there_are():
    """Settings that lost their flag are named as settings: torchrun, Slurm, pip and the exercises have flags of their own."""
    known, root = set().union(*options(command_line()).values()), LIST.parents[1]
    unknown = {
        (path.relative_to(root).as_posix(), flag)
        for path in (*root.joinpath("docs").rglob("*.md"), root / "README.md", root / "CHANGELOG.md")
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", path.read_text(encoding="utf-8"))
        if flag not in known and not OTHER_PROGRAMS.fullmatch(flag)
    }
    assert unknown == set()
