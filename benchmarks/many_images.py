"""The default repair of many images, from files to the repaired network. Prints seconds of each part, and one row with --out FILE.csv.

    python benchmarks/many_images.py [--rows 50000] [--size 224] [--folder DIR] [--budget SECONDS] \
      [--out benchmarks/seconds/many-images.csv]

The images are simulated JPEG files: a finding that is fainter in one group. A ResNet-18 learns it from 3,000 further images; then the clock
starts, and everything counts that a user waits for: reading and decoding the files, and `eq.debias(network, rows)` without any setting.
"""

import argparse
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image

import equipoise as eq
from equipoise.models import backbone

TRAINED, VALIDATED = 3000, 400


def patients(rows: int) -> pd.DataFrame:
    """One row per image: label, sex, file, and how clearly the finding shows."""
    rng = np.random.default_rng(0)
    y, female = rng.integers(0, 2, rows), rng.random(rows) < 0.5
    strength = np.where(female, 0.25, 0.45) * np.where(y == 1, 1, -1) + rng.normal(0, 0.5, rows)
    files = [f"{row // 1000:03d}/{row:06d}.jpg" for row in range(rows)]
    return pd.DataFrame({"image": files, "finding": y, "sex": np.where(female, "F", "M"), "patient": np.arange(rows), "strength": strength})


def draw(table: pd.DataFrame, folder: Path, size: int) -> None:
    """Writes the images of these rows."""
    for row, told in table.iterrows():
        file, female, strength = told["image"], told["sex"] == "F", told["strength"]
        pixels = np.random.default_rng(int(str(row))).integers(60, 196, (size, size)).astype(np.int16)
        pixels[: size // 4] += int(40 * strength)
        if female:
            pixels[:, : size // 8] -= 30
        path = folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(path, quality=85)


def cohort(table: pd.DataFrame, folder: Path, size: int) -> eq.Cohort:
    """These rows with their images, read and decoded."""
    return eq.Cohort.from_images(
        table, folder=folder, image="image", label="finding", group="sex", reference="M", patient="patient", size=size, name="simulated"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--folder", type=Path, help="where the images are written; a temporary folder otherwise")
    parser.add_argument("--budget", type=float, help="seconds that the repair may take")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        table = patients(given.rows + TRAINED + VALIDATED)
        parts = np.array_split(np.arange(len(table)), 64)
        with ProcessPoolExecutor() as pool:
            list(pool.map(draw, [table.iloc[part] for part in parts], [folder] * len(parts), [given.size] * len(parts)))
        train, valid, rest = (table.iloc[a:b] for a, b in ((0, TRAINED), (TRAINED, TRAINED + VALIDATED), (TRAINED + VALIDATED, len(table))))
        torch.manual_seed(0)
        about = eq.Training(epochs=3, batch=64, learning_rate=3e-4, optimiser="adamw")
        network = backbone("resnet-18").to(device)
        model = eq.train(cohort(train, folder, given.size), cohort(valid, folder, given.size), model=network, seed=0, settings=about)
        start = time.perf_counter()
        rows = cohort(rest.reset_index(drop=True), folder, given.size)
        rows.inputs[torch.arange(1)]
        read = time.perf_counter() - start
        found = eq.debias(model, rows) if given.budget is None else eq.debias(model, rows, budget=given.budget)
        if device == "cuda":
            torch.cuda.synchronize()
        took = time.perf_counter() - start
    row = found.trace.iloc[found.chosen]
    told = {"rows": given.rows, "size": given.size, "device": torch.cuda.get_device_name() if device == "cuda" else device}
    told |= {"seconds": round(took, 1), "reading": round(read, 1), "repair": round(took - read, 1), "method": found.ran}
    told |= {"gap_before": round(float(found.trace["gap"].iloc[0]), 4), "gap": round(float(row["gap"]), 4), "outcome": str(found.outcome)}
    print(told)
    for note in found.notes:
        print(note.kind, note.subject, dict(note.numbers))
    if given.out is not None:
        pd.DataFrame([told]).to_csv(given.out, index=False)


if __name__ == "__main__":
    main()
