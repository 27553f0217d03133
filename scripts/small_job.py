"""A small job that needs the core dependencies only, for environments with other versions of them (see other_versions.sh).

Audits and repairs scores from CSV and Parquet, trains and repairs a torchvision network on images, applies both and writes every page.
"""

import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from safetensors.torch import save_file

import equipoise as eq
from equipoise.models import backbone

COLUMNS = ("--label", "sick", "--group", "sex", "--reference", "M", "--patient", "patient_id")
NETWORK = """
import torchvision
from torch import nn

def build():
    network = torchvision.models.squeezenet1_1(weights=None, num_classes=1)
    network.features[0] = nn.Conv2d(1, 64, kernel_size=3, stride=2)
    network.classifier[2] = nn.Identity()
    network.output = "logit"
    return network
"""


def command(*arguments: str) -> None:
    print("equipoise", *arguments, flush=True)
    subprocess.run([sys.executable, "-m", "equipoise", *arguments], check=True, stdout=subprocess.DEVNULL)


def scores(rng: np.random.Generator, rows: int = 600) -> pd.DataFrame:
    sex, sick = rng.choice(["F", "M"], rows), rng.integers(0, 2, rows)
    score = 1 / (1 + np.exp(-(1.5 * sick * np.where(sex == "M", 1.3, 0.7) + rng.normal(size=rows) - 0.7)))
    return pd.DataFrame({"patient_id": [f"p{k}" for k in range(rows)], "sex": sex, "sick": sick, "score": score})


def images(folder: Path, rows: int = 160, size: int = 48) -> pd.DataFrame:
    """Simulated X-rays as PNG files, and their table."""
    cohort = eq.load("phantom", n=rows, size=size, seed=0)
    folder.mkdir()
    films = cohort.inputs[:].numpy()[:, 0]
    films = ((films - films.min()) / (films.max() - films.min()) * 255).astype("uint8")
    names = [f"{k}.png" for k in range(rows)]
    for name, film in zip(names, films, strict=True):
        Image.fromarray(film).save(folder / name)
    sex = np.asarray(cohort.attribute.levels)[cohort.attribute.codes]
    return pd.DataFrame({"patient_id": [f"p{k}" for k in range(rows)], "image": names, "sex": sex, "sick": cohort.y})


def main() -> None:
    table = scores(np.random.default_rng(0))
    table.to_csv("scores.csv", index=False)
    table.to_parquet("scores.parquet", index=False)
    for options in (["--help"], ["audit", "--help"], ["debias", "--help"]):
        command(*options)
    for file in ("scores.csv", "scores.parquet"):
        command("audit", file, *COLUMNS, "--score", "score", "--report", "audit.html", "--set", "report.figures=figures/")
    command("debias", "scores.csv", *COLUMNS, "--score", "score", "--threshold", "0.5", "--measure", "eod", "--out", "rule/")
    command("apply", "rule/", "scores.csv", "--out", "decisions.csv")

    images(Path("xrays")).to_csv("local.csv", index=False)
    Path("my_model.py").write_text(NETWORK)
    torch.manual_seed(0)
    save_file(backbone("squeezenet").state_dict(), "net.safetensors")
    network = ["--images", "xrays/", "--set", "images.size=48", "--model", "my_model.py:build", "--weights", "net.safetensors"]
    command(
        "debias",
        "local.csv",
        *COLUMNS,
        *network,
        "--method",
        "bias-gda",
        "--measure",
        "spd",
        "--set",
        "bias-gda.epochs=1",
        "--out",
        "repaired/",
    )
    command("apply", "repaired/", "local.csv", "--images", "xrays/", "--model", "my_model.py:build", "--out", "new.csv")
    expected = ["audit.html", "rule/report.html", "decisions.csv", "repaired/report.html", "new.csv"]
    missing = [name for name in expected if not Path(name).is_file()]
    if missing:
        sys.exit(f"not written: {', '.join(missing)}")


if __name__ == "__main__":
    warnings.simplefilter("error")
    with tempfile.TemporaryDirectory() as place:
        os.chdir(place)
        main()
        os.chdir("/")
    print("done:", ", ".join(f"{module.__name__} {module.__version__}" for module in (torch, np, pd)))
