"""A user's network may import torchvision, whether or not its compiled operators can be loaded next to this torch.

Both kinds are stand-ins that do at import what torchvision does: load a library if it fits, then look up an operator that the library
registers. A library that registers an operator that exists already ends the process (exit code 134), as in torchvision 0.29.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

INIT = """
from torchvision import extension, _meta_registrations
TIMES = len(extension.LOADED)
"""
EXTENSION = """
import os
import torch
LOADED = []
def load():
    if not {fits}:
        raise OSError("libtorch_cuda.so: cannot open shared object file")
    if hasattr(torch.ops.torchvision, "nms"):
        os.abort()
    LOADED.append(torch.library.Library("torchvision", "DEF"))
    LOADED[0].define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
try:
    load()
except OSError:
    pass
"""
LOOK_UP = """
import torch
torch.library.register_fake("torchvision::nms", lambda dets, scores, iou_threshold: dets)
"""
NETWORK = """
import torchvision
from torch import nn

def network():
    print("operators:", torchvision.TIMES)
    return nn.Linear(2, 1)
"""


@pytest.mark.parametrize(("library", "fits"), [("_C.so", False), ("_C_stable.so", True)])
def test_a_users_network_may_import_any_build_of_torchvision(tmp_path: Path, library: str, fits: bool):
    package = tmp_path / "site" / "torchvision"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(INIT)
    (package / "extension.py").write_text(EXTENSION.format(fits=fits))
    (package / "_meta_registrations.py").write_text(LOOK_UP)
    (package / library).write_bytes(b"no library: a decision by its name, or by loading it in advance, would be wrong")
    (tmp_path / "net.py").write_text(NETWORK)
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=80), "b": rng.normal(size=80), "y": [0, 1] * 40, "sex": ["F", "F", "M", "M"] * 20})
    table.to_csv(tmp_path / "rows.csv", index=False)
    command = [sys.executable, "-m", "equipoise", "audit", "rows.csv", "--label", "y", "--group", "sex", "--reference", "M"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(package.parent), *sys.path])}
    ran = subprocess.run(
        [*command, "--model", "net.py:network"], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert f"operators: {int(fits)}" in ran.stdout + ran.stderr
