"""One folder with everything that the recorded commands and calls read: tables of scores, images, networks and estimators, none trained."""

import gzip
import warnings
from pathlib import Path

import numpy as np
import pandas as pd

ROWS, SIDE, NEW = 360, 8, 40
FINDINGS = ("Effusion", "Mass", "Nodule")
CODE = """
import torch
from torch import nn

def table():
    return nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 1))

def pixels():
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 4), nn.ReLU(), nn.Linear(4, 1))

def findings():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3))
"""
STUDY = """
name = "tiny"
about = "A tiny study"
measures = ["spd", "eod"]
splits = 2

[training]
epochs = 2

[[data]]
source = "loh"
options = { n = 240, alpha = 2.0 }

[[methods]]
method = "standard"

[[methods]]
method = "bias-gda"
settings = { epochs = 1 }

[[methods]]
method = "group-thresholds"
"""


def build(folder: Path) -> None:
    """Writes all of it."""
    rng = np.random.default_rng(2026)
    frame = visits(rng, ROWS)
    frame.to_csv(folder / "scores.csv", index=False)
    frame.to_parquet(folder / "scores.parquet", index=False)
    (folder / "scores.csv.gz").write_bytes(gzip.compress((folder / "scores.csv").read_bytes(), mtime=0))
    frame.head(NEW).to_csv(folder / "new.csv", index=False)
    (folder / "parts").mkdir()
    for k, part in enumerate(np.array_split(np.arange(ROWS), 3)):
        frame.iloc[part].to_csv(folder / "parts" / f"{k}.csv", index=False)
    for k in (1, 2, 3):
        later = visits(np.random.default_rng(100 + k), ROWS)
        later.assign(patient=[f"{k}-{p}" for p in later["patient"]]).to_csv(folder / f"later{k}.csv", index=False)
    (folder / "net.py").write_text(CODE)
    (folder / "study.toml").write_text(STUDY)
    _networks(folder, rng)
    _images(folder, frame, rng)
    _estimator(folder, frame)


def visits(rng: np.random.Generator, rows: int) -> pd.DataFrame:
    """Visits of patients, some of whom return often; women's findings are scored lower."""
    patient = np.sort(rng.integers(0, rows // 2, rows))
    sex = rng.choice(["F", "M"], rows // 2)[patient]
    age = rng.integers(20, 95, rows // 2)[patient]
    race = rng.choice(["A", "B", "C"], rows // 2, p=[0.5, 0.3, 0.2])[patient]
    sick = (rng.random(rows) < 0.35 + 0.1 * (sex == "M")).astype(int)
    x = rng.normal(size=(rows, 3)) + np.stack([1.1 * sick, 0.9 * (sex == "M"), 0.2 * (age > 60)], 1)
    frame = pd.DataFrame({"id": [f"v{k:03d}" for k in range(rows)], "patient": [f"{p:04d}" for p in patient], "sex": sex, "age": age})
    frame = frame.assign(race=race, view=rng.choice(["PA", "AP"], rows), sick=sick, weight=rng.choice([0.5, 1.0, 2.0], rows))
    frame = frame.assign(p=_score(1.4 * sick - 0.6 * (sex == "F") + rng.normal(size=rows)))
    frame = frame.assign(logit=(1.4 * sick - 0.6 * (sex == "F") + rng.normal(size=rows)).round(4))
    for k, name in enumerate(FINDINGS):
        y = (rng.random(rows) < 0.3 + 0.1 * k).astype(float)
        frame[f"score_{name}"] = _score(1.2 * y - 0.3 * k * (sex == "F") + rng.normal(size=rows))
        y[rng.random(rows) < 0.03 * k] = np.nan
        frame[name] = y
    frame["class"] = np.array(["none", "pneumonia", "effusion"])[rng.integers(0, 3, rows)]
    frame["vendor"] = np.where(rng.random(rows) < 0.1, "", frame["p"].astype(str))
    return frame.assign(a=x[:, 0].round(4), b=x[:, 1].round(4), c=x[:, 2].round(4))


def _score(logits: np.ndarray) -> np.ndarray:
    return (1 / (1 + np.exp(-logits + 0.7))).round(4)


def _networks(folder: Path, rng: np.random.Generator) -> None:
    import torch
    from safetensors.torch import save_file

    namespace: dict[str, object] = {}
    exec(CODE, namespace)
    for name in ("table", "pixels", "findings"):
        model = namespace[name]()  # type: ignore[operator]
        state = {key: torch.from_numpy(rng.normal(0, 0.5, value.shape).astype(np.float32)) for key, value in model.state_dict().items()}
        model.load_state_dict(state)
        save_file(state, folder / f"{name}.safetensors")
        if name == "table":
            torch.save(state, folder / "table.pt")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # the other exporter takes ten times as long
                axes = {"x": {0: "n"}, "logit": {0: "n"}}
                names = {"input_names": ["x"], "output_names": ["logit"], "dynamic_axes": axes}
                torch.onnx.export(model, (torch.zeros(2, 3),), folder / "table.onnx", dynamo=False, **names)


def _images(folder: Path, frame: pd.DataFrame, rng: np.random.Generator) -> None:
    from PIL import Image

    few = frame.head(150)
    (folder / "xrays").mkdir()
    for name, sick, sex in zip(few["id"], few["sick"], few["sex"], strict=True):
        pixels = rng.integers(0, 160, (SIDE, SIDE)) + 40 * sick + 30 * (sex == "M")
        Image.fromarray(pixels.astype(np.uint8)).save(folder / "xrays" / f"{name}.png")
    few.assign(image=[f"{name}.png" for name in few["id"]]).to_csv(folder / "images.csv", index=False)


def _estimator(folder: Path, frame: pd.DataFrame) -> None:
    import skops.io
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.5, tol=1e-10)).fit(frame[["a", "b", "c"]], frame["sick"])
    skops.io.dump(model, folder / "pipeline.skops")
