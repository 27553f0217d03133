"""Shared by all tests: one compute thread, quick and repeatable hypothesis runs, where the real data are."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

import equipoise.cli.app  # noqa: F401 (a console keeps the width that it is made with: it is made before any test sets one)

torch.set_num_threads(1)
settings.register_profile("equipoise", deadline=None, max_examples=60, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("equipoise")


@pytest.fixture
def data_root() -> Path:
    """The folder with real data sets; the test is skipped where there is none."""
    root = os.environ.get("EQUIPOISE_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("real data: set EQUIPOISE_DATA to a folder with adult, bank, compas ...")
    return Path(root)
