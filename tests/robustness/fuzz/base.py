"""The sound inputs that are mutated: a table of 60 rows, 16-pixel images, DICOM files, linear networks, bundles, audits and a study."""

import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from equipoise.cli import run

ROWS, SIDE, NEW = 60, 16, 8
MEAN, STD = 0.5, 0.25  # how `--images` normalises by default
CODE = """
from torch import nn

def linear():
    return nn.Linear(2, 1)

def pixels():
    return nn.Sequential(nn.Flatten(), nn.Linear(256, 1))
"""
STUDY = """
name = "tiny"
about = "A tiny study"
measures = ["eod"]
splits = 1

[training]
epochs = 1

[[data]]
source = "loh"
options = { n = 120, alpha = 2.0 }

[[methods]]
method = "standard"

[[methods]]
method = "equalised-odds"
"""
CARD = """
[model]
name = "Pneumonia classifier"
developer = "A hospital"
license = "MIT"
keywords = ["x-ray", "chest"]
release_date = 2026-01-02

[use]
intended = "Second reading."
users = "Radiologists"

[safety]
goal = "None missed"

[[safety.results]]
label = "Missed"
value = 0.02
low = 0.01
high = 0.04
level = 0.95
"""
ROLES = ["--label", "y", "--group", "sex", "--reference", "M", "--patient", "patient"]
FEATURES = ["--set", "data.features=a", "--set", "data.features=b"]
QUICK = [
    "--set",
    "repair.draws=2",
    "--set",
    "report.onnx=false",
    "--set",
    "goal.min_performance=0",
    "--set",
    "goal.selection=paper",
    "--set",
    "repair.force=true",
]  # 60 rows have too few in a cell


def image_names() -> list[str]:
    """The names of the images, among them those that are easily taken for one another."""
    tricky = ["12.png", "00012.png", "patA/view1.png", "patB/view1.png", "patB/view2.png", "1.2.840.5.1.png", "1.2.840.5.2.png"]
    return tricky + [f"scan{k:02d}.png" for k in range(ROWS - len(tricky))]


def build(folder: Path) -> None:
    """Writes all of it into a folder. Raises if a sound input is not accepted."""
    rng = np.random.default_rng(12)
    sex = np.where(rng.random(ROWS) < 0.5, "F", "M")
    y = (rng.random(ROWS) < 0.5).astype(int)
    x = (rng.normal(size=(ROWS, 2)) + np.stack([1.5 * y, 0.8 * (sex == "M")], 1)).round(3)
    score = np.clip(0.5 + 0.2 * (x[:, 0] - 0.75) + 0.05 * rng.normal(size=ROWS), 0.01, 0.99).round(4)
    lines = [f"r{k:02d},{1000 + k // 2:05d},{sex[k - k % 2]},{y[k]},{score[k]:.4f},{x[k, 0]:.3f},{x[k, 1]:.3f}" for k in range(ROWS)]
    header = "id,patient,sex,y,p,a,b"
    (folder / "scores.csv").write_text("\n".join([header, *lines]) + "\n")
    (folder / "new.csv").write_text("\n".join([header, *lines[:NEW]]) + "\n")
    later = [line.replace(f",{1000 + k // 2:05d},", f",{2000 + k // 2:05d},").replace(f"{score[k]:.4f}", f"{0.9 * score[k]:.4f}", 1)
             for k, line in enumerate(lines)]  # fmt: skip
    (folder / "later.csv").write_text("\n".join([header, *later]) + "\n")
    (folder / "net.py").write_text(CODE)
    (folder / "study.toml").write_text(STUDY)
    (folder / "card.toml").write_text(CARD)
    linear = nn.Linear(2, 1)
    linear.load_state_dict({"weight": torch.tensor([[1.0, 0.5]]), "bias": torch.tensor([-1.1])})
    _save(linear, folder / "net")
    pixels = nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 1))
    weight = torch.from_numpy(rng.normal(0, 0.05, (1, SIDE * SIDE)).astype(np.float32))
    pixels.load_state_dict({"1.weight": weight, "1.bias": torch.tensor([0.1])})
    _save(pixels, folder / "pixels")
    torch.export.save(
        torch.export.export(linear, (torch.zeros(2, 2),), dynamic_shapes=({0: torch.export.Dim("rows")},)), folder / "net.pt2"
    )
    _images(folder, lines, rng)
    _bundles(folder)
    audit = ["audit", str(folder / "scores.csv"), *ROLES, "--score", "p", "--set", "audit.min_patients=1"]
    sound = {
        "table": [*audit, "--out", str(folder / "audit.json")],
        "history": [*audit, "--append", str(folder / "history.parquet"), "--date", "2026-10"],
        "second period": ["audit", str(folder / "later.csv"), *audit[2:], "--append", str(folder / "history.parquet"), "--date", "2026-11"],
        "exported network": [*audit[:2], *ROLES, *FEATURES, "--model", str(folder / "net.pt2"), "--set", "model.output=logit"],
        "study": ["study", "run", str(folder / "study.toml"), "--out", str(folder / "study"), "--runner", "serial"],
        "card": ["debias", str(folder / "scores.csv"), *ROLES, *FEATURES, "--model", f"{folder / 'net.py'}:linear", "--dry-run",
                 "--set", f"report.card={folder / 'card.toml'}", "--out", str(folder / "card")],
    }  # fmt: skip
    for name, command in sound.items():
        if run(command) != 0:
            raise RuntimeError(f"the sound {name} is not accepted")


def _save(model: nn.Module, stem: Path) -> None:
    state = model.state_dict()
    save_file(state, stem.with_suffix(".safetensors"))
    torch.save(state, stem.with_suffix(".pt"))
    torch.save({"epoch": 3, "state_dict": {f"module.{k}": v for k, v in state.items()}, "lr": 0.1}, f"{stem}-nested.pt")


def _images(folder: Path, lines: list[str], rng: np.random.Generator) -> None:
    names, shown = image_names(), rng.integers(1, 255, (ROWS, SIDE, SIDE), dtype=np.uint8)
    shown[:, 0, 0], shown[:, 0, 1] = 0, 255  # the whole range, so that a DICOM file without a window shows the same
    np.save(folder / "pixels.npy", shown)
    for name, image in zip(names, shown, strict=True):
        path = folder / "xrays" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
        _dicom(folder / "dicoms" / Path(name).with_suffix(".dcm"), image)
    for kind in ("xrays", "dicoms"):
        named = [str(Path(name).with_suffix(".dcm")) if kind == "dicoms" else name for name in names]
        rows = [f"{line},{name}" for line, name in zip(lines, named, strict=True)]
        (folder / f"{kind}.csv").write_text("\n".join(["id,patient,sex,y,p,a,b,image", *rows]) + "\n")
        (folder / f"{kind}-new.csv").write_text("\n".join(["id,patient,sex,y,p,a,b,image", *rows[:NEW]]) + "\n")


def _dicom(path: Path, image: NDArray[np.uint8]) -> None:
    from pydicom.dataset import FileDataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian

    path.parent.mkdir(parents=True, exist_ok=True)
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = "1.2.840.10008.5.1.4.1.1.1", "1.2.3"
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    data = FileDataset(str(path), {}, file_meta=meta, preamble=b"\0" * 128)
    data.PatientName, data.PatientID, data.PatientSex, data.PatientAge = "Doe^Jane", "17", "F", "045Y"
    data.SOPClassUID, data.SOPInstanceUID, data.Modality = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID, "DX"
    data.Rows, data.Columns, data.SamplesPerPixel = *image.shape, 1
    data.BitsAllocated, data.BitsStored, data.HighBit, data.PixelRepresentation = 8, 8, 7, 0
    data.PhotometricInterpretation, data.PixelData = "MONOCHROME2", image.tobytes()
    data.save_as(path, enforce_file_format=True)


def _bundles(folder: Path) -> None:
    table = [str(folder / "scores.csv"), *ROLES, *FEATURES, "--set", "data.id=id", "--model", f"{folder / 'net.py'}:linear", *QUICK]
    table += ["--weights", str(folder / "net.safetensors")]
    images = [str(folder / "xrays.csv"), *ROLES, "--images", str(folder / "xrays"), "--set", f"images.size={SIDE}"]
    images += ["--model", f"{folder / 'net.py'}:pixels", "--weights", str(folder / "pixels.safetensors"), *QUICK]
    for name, command in (
        ("threshold", [*table, "--method", "bias-gda", "--set", "bias-gda.schedule=paper", "--set", "bias-gda.epochs=1"]),
        ("groups", [*table, "--method", "equalised-odds"]),
        ("images", [*images, "--method", "bias-gda", "--set", "bias-gda.schedule=paper", "--set", "bias-gda.epochs=1"]),
    ):
        place = folder / "bundles" / name
        place.parent.mkdir(exist_ok=True)
        if run(["debias", *command, "--out", str(place)]) != 0:
            raise RuntimeError(f"the bundle {name} cannot be made")
        save = folder / f"{name}.json"
        if run([*serving(folder, place, name), "--out", str(folder / f"{name}.csv")]) != 0:
            raise RuntimeError(f"the bundle {name} cannot be applied")
        save.write_text(json.dumps({"decisions": (folder / f"{name}.csv").read_text()}))


def serving(base: Path, bundle: Path, name: str, new: Path | None = None, images: Path | None = None) -> list[str]:
    """The command that serves new patients with a bundle."""
    file = "xrays-new.csv" if name == "images" else "new.csv"
    factory = "pixels" if name == "images" else "linear"
    pictures = ["--images", str(images or base / "xrays")] if name == "images" else []
    return ["apply", str(bundle), str(new or base / file), *pictures, "--model", f"{base / 'net.py'}:{factory}"]
