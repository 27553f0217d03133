"""Shared by all tests: one compute thread, quick and repeatable hypothesis runs, where the real data are."""

import gc
import importlib
import multiprocessing
import os
from collections.abc import Iterator
from functools import cache
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from support import torch_alone

os.environ.pop("COLUMNS", None)  # a console keeps the width that it is made with: it is made without one, before any test sets one
importlib.import_module("equipoise.cli.app")

gc.disable()  # until all is collected: modules and tests are kept, and looking through them again and again takes a quarter of that time

torch.set_num_threads(1)
os.environ["EQUIPOISE_DEVICE"] = "cpu"  # next to a GPU too: tests compare numbers exactly, and those of GPUs name their device
settings.register_profile("equipoise", deadline=None, max_examples=25, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("equipoise")


# Files that take longest, longest first. A worker takes whole files, so that what a file shares is made once; a long one must not be last.
LONGEST = [
    "tests/studies/test_runners.py",
    "tests/browser/test_report.py",
    "tests/golden/test_golden.py",
    "tests/test_docs.py",
    "tests/studies/test_run.py",
    "tests/measures/test_streaming.py",
    "tests/studies/test_efficientnet_lite.py",
    "tests/test_rooms.py",
    "tests/cli/test_bombs.py",
    "tests/studies/test_chest_xray.py",
    "tests/test_fuzz.py",
    "tests/methods/test_bad_input.py",
    "tests/methods/test_outcome.py",
    "tests/report/test_repair_page.py",
    "tests/cli/test_labels.py",
    "tests/methods/test_labels.py",
    "tests/cli/test_debias_goals.py",
    "tests/methods/test_cross_fitted.py",
    "tests/methods/test_measures.py",
    "tests/cli/test_processes.py",
    "tests/methods/test_bias_score.py",
    "tests/models/test_ranks.py",
    "tests/cli/test_debias.py",
    "tests/browser/test_compare_pages.py",
    "tests/models/test_torchvision_builds.py",
    "tests/browser/test_audit_report.py",
    "tests/methods/test_contract.py",
    "tests/models/test_vision.py",
    "tests/cli/test_study.py",
    "tests/cli/test_tables.py",
    "tests/test_small_groups.py",
    "tests/test_examples.py",
    "tests/test_sklearn.py",
    "tests/case/test_predictors.py",
    "tests/measures/test_permutation.py",
    "tests/measures/test_coverage.py",
    "tests/models/test_bias_network.py",
    "tests/report/test_model_card.py",
    "tests/case/test_save.py",
    "tests/cli/test_apply.py",
    "tests/models/test_other_libraries.py",
    "tests/studies/test_results.py",
    "tests/cli/test_agree.py",
    "tests/data/test_identifiers.py",
    "tests/models/test_loading.py",
    "tests/test_kills.py",
    "tests/cli/test_equivalents.py",
    "tests/cli/test_demo.py",
    "tests/measures/test_unequal_patients.py",
    "tests/test_privacy.py",
    "tests/measures/test_row_order.py",
    "tests/cli/test_report_again.py",
    "tests/cli/test_commands.py",
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, all else in its order."""
    root = Path(__file__).parents[1]
    if gone := [name for name in LONGEST if not (root / name).is_file()]:
        raise pytest.UsageError(f"tests/conftest.py: LONGEST names files that are gone: {', '.join(gone)}. Rename or remove them there.")
    place = {name: k for k, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(place)))


def pytest_collection_finish() -> None:
    """What was imported stays, so that it is not looked through after it."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _one_registry() -> Iterator[None]:
    """The operators that PyTorch exports are collected once, not for every export: it takes seconds, and no test adds one."""
    with pytest.MonkeyPatch.context() as patch:
        try:
            registry = importlib.import_module("torch.onnx._internal.exporter._registration").ONNXRegistry
            patch.setattr(registry, "from_torchlib", staticmethod(cache(registry.from_torchlib)))
            export = importlib.import_module("torch._export.utils")
            patch.setattr(export, "_materialize_cpp_cia_ops", cache(export._materialize_cpp_cia_ops))
        except (ImportError, AttributeError):  # another build of PyTorch
            pass
        yield


@pytest.fixture(scope="session")
def forks() -> ForkServerContext:
    """Starts processes from one that has imported torch already, which takes 10 ms each instead of the 4 s of an import."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["equipoise.studies.worker"])
    return context


@pytest.fixture(scope="session")
def alone() -> Iterator[torch_alone.Run]:
    """Runs code where torch is and Equipoise is not."""
    with torch_alone.started() as run:
        yield run


@pytest.fixture
def data_root() -> Path:
    """The folder with real data sets; the test is skipped where there is none."""
    root = os.environ.get("EQUIPOISE_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("real data: set EQUIPOISE_DATA to a folder with adult, bank, compas ...")
    return Path(root)
