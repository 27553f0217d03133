"""Trees of tiny chest X-rays with the layouts of NIH and of MIMIC-CXR: the sick are brighter, women less so."""

import gzip
from pathlib import Path

import numpy as np
from PIL import Image

NETWORK = """
from torch import nn

def make():
    layers = [nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1)]
    network = nn.Sequential(*layers)
    network.output = "logit"
    return network
"""
PATIENTS = 64  # two images each, the second of every fourth patient is of no finding


def network(folder: Path) -> str:
    """A convolutional network of 45 weights, as file.py:factory."""
    (folder / "net.py").write_text(NETWORK)
    return f"{folder / 'net.py'}:make"


def people() -> list[tuple[int, str, int, int]]:
    """Patient, sex, label and image of each row."""
    return [(10_000_000 + p, "MF"[p % 2], int(p % 4 > 1 and not (k and p % 8 > 5)), k) for p in range(PATIENTS) for k in (0, 1)]


def write_image(path: Path, sex: str, label: int, rng: np.random.Generator) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    bright = rng.normal(90 + label * (60 if sex == "M" else 30), 30)  # no network can tell them all
    Image.fromarray(rng.normal(bright, 30, (20, 20)).clip(0, 255).astype(np.uint8)).save(path)


def write_nih(folder: Path) -> Path:
    """metadata.csv and images/, as in `nih`."""
    rng, lines = np.random.default_rng(0), ["image,patient,sex,age,view,finding"]
    for patient, sex, label, k in people():
        write_image(folder / "images" / f"{patient}_{k}.png", sex, label, rng)
        lines.append(f"{patient}_{k}.png,{patient},{sex},50,PA,{'Effusion' if label else 'No Finding'}")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    return folder


def write_mimic_cxr(folder: Path) -> Path:
    """The tables of MIMIC-CXR-JPG, files/, and patients and admissions of MIMIC-IV in hosp/."""
    rng = np.random.default_rng(0)
    metadata, chexpert = (
        ["dicom_id,subject_id,study_id,ViewPosition"],
        ["subject_id,study_id,Enlarged Cardiomediastinum,No Finding,Pneumonia"],
    )
    for patient, sex, label, k in people():
        study = f"{patient + k}"
        write_image(folder / "files" / "p10" / f"p{patient}" / f"s{study}" / f"d{patient}-{k}.jpg", sex, label, rng)
        metadata.append(f"d{patient}-{k},{patient},{study},PA")
        chexpert.append(f"{patient},{study},{'1.0,,1.0' if label else ',1.0,'}")
    sexes = {patient: sex for patient, sex, _, _ in people()}
    for name, lines in {"metadata": metadata, "chexpert": chexpert}.items():
        (folder / f"mimic-cxr-2.0.0-{name}.csv.gz").write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    (folder / "hosp").mkdir()
    (folder / "hosp" / "patients.csv").write_text("subject_id,gender\n" + "".join(f"{p},{s}\n" for p, s in sexes.items()))
    races = {"M": "WHITE", "F": "HISPANIC/LATINO - CUBAN"}
    (folder / "hosp" / "admissions.csv").write_text("subject_id,race\n" + "".join(f"{p},{races[s]}\n" for p, s in sexes.items()))
    return folder
