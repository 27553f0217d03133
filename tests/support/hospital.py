"""What a hospital's engineer has at hand, in one folder: a network's code and weights, a table, images, and new patients."""

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

ROWS, SIDE = 240, 12
ROLES = ["--label", "sick", "--group", "sex", "--reference", "M", "--patient", "pid"]
TABLE = [
    "debias",
    "local.csv",
    *ROLES,
    "--set",
    "data.id=id",
    "--model",
    "net.py:build",
    "--weights",
    "net.safetensors",
    "--out",
    "repaired",
]
IMAGES = ["debias", "images.csv", *ROLES, "--images", "xrays", "--set", f"images.size={SIDE}", "--model", "net.py:cnn"]
IMAGES += ["--weights", "cnn.safetensors", "--out", "repaired"]
BIAS_GDA = {"schedule": "paper", "epochs": 3, "learning_rate": 0.01}
QUICK = ["--set", "repair.draws=20", "--set", "goal.min_performance=0.6"]
QUICK += [word for name, value in BIAS_GDA.items() for word in ("--set", f"bias-gda.{name}={value}")]
FAST = [*QUICK, "--set", "report.onnx=false"]
CODE = """
import torch
from torch import nn

def build():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 1))

def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Conv2d(4, 3, 3, stride=2), nn.ReLU(),
        nn.Flatten(), nn.Linear(75, 6), nn.ReLU(), nn.Linear(6, 1),
    )

class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x):
        return self.layer(torch.special.bessel_j0(x))

def needs(width): return nn.Linear(width, 1)
def raises(): raise KeyError("no GPU")
def two(): return nn.Linear(3, 2)
"""


def network(name: str) -> nn.Module:
    """What a factory in CODE builds, without a file."""
    place: dict[str, object] = {}
    exec(CODE, place)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return place[name]()  # type: ignore[operator, no-any-return]


def patients(seed: int = 0) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Two rows a patient; the label and one input depend on the sex. The table, its inputs, and the images."""
    rng = np.random.default_rng(seed)
    patient = np.arange(ROWS) // 2
    sex = np.where(rng.random(ROWS // 2) < 0.5, "M", "F")[patient]
    y = (rng.random(ROWS) < 0.35 + 0.3 * (sex == "M")).astype(int)
    x = rng.normal(size=(ROWS, 3)).astype(np.float32)
    x[:, 0] += 1.2 * y
    x[:, 1] += 1.5 * (sex == "M")
    images = rng.integers(0, 120, (ROWS, SIDE, SIDE))
    images[:, 3:7, 3:7] += 12 * y[:, None, None]
    images[:, 9:, 9:] += 60 * (sex == "M")[:, None, None]
    frame = pd.DataFrame({"id": [f"r{k}" for k in range(ROWS)], "pid": patient, "sex": sex, "sick": y})
    return frame, x, images.astype(np.uint8)


def trained(name: str, inputs: torch.Tensor, y: np.ndarray, steps: int) -> nn.Module:
    """A network that has seen these rows."""
    model = network(name)
    optimiser = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(inputs)[:, 0], torch.tensor(y).float()).backward()
        optimiser.step()
    return model.eval()


def table(folder: Path) -> nn.Module:
    """The files of `_table`, and its network."""
    return _copied(_table, folder)


def images(folder: Path) -> nn.Module:
    """The files of `_images`, and its network."""
    return _copied(_images, folder)


@cache
def _made(make: Callable[[Path], nn.Module]) -> tuple[nn.Module, dict[str, bytes]]:
    """What is made, once: the network and the contents of the files."""
    with TemporaryDirectory() as name:
        model = make(folder := Path(name))
        return model, {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _copied(make: Callable[[Path], nn.Module], folder: Path) -> nn.Module:
    model, files = _made(make)
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    return deepcopy(model)


def _table(folder: Path) -> nn.Module:
    """net.py, local.csv, new.csv, and the weights as net.safetensors, net.pt and, inside a checkpoint, nested.pt."""
    frame, x, _ = patients()
    model = trained("build", torch.from_numpy(x), frame["sick"].to_numpy(), 60)
    (folder / "net.py").write_text(CODE)
    frame.assign(a=x[:, 0], b=x[:, 1], c=x[:, 2]).to_csv(folder / "local.csv", index=False)
    new, x, _ = patients(1)
    new.drop(columns="sick").assign(a=x[:, 0], b=x[:, 1], c=x[:, 2]).to_csv(folder / "new.csv", index=False)
    save_file(model.state_dict(), folder / "net.safetensors")
    torch.save(model.state_dict(), folder / "net.pt")
    wrapped = {f"module.{key}": value for key, value in model.state_dict().items()}
    torch.save({"epoch": 7, "state_dict": wrapped, "optimizer": {"lr": 0.1}}, folder / "nested.pt")
    return model


def _images(folder: Path) -> nn.Module:
    """net.py, xrays/, images.csv and cnn.safetensors. Pixels are normalised as `--images` does by default."""
    frame, _, pixels = patients()
    inputs = torch.from_numpy((pixels / 255 - 0.5) / 0.25).float()[:, None]
    model = trained("cnn", inputs, frame["sick"].to_numpy(), 8)
    (folder / "net.py").write_text(CODE)
    (folder / "xrays").mkdir()
    for k, image in enumerate(pixels):
        Image.fromarray(image).save(folder / "xrays" / f"{k}.png")
    frame.drop(columns="id").assign(image=[f"{k}.png" for k in range(ROWS)]).to_csv(folder / "images.csv", index=False)
    save_file(model.state_dict(), folder / "cnn.safetensors")
    return model
