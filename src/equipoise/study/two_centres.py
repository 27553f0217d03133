"""The paper's scenario on simulated chest X-rays: a classifier that is trained at one centre and used at another.

Centre 1 sees few women and finds the disease in few of them, so its network learns to associate being a woman with health. At centre 2
as many women as men are ill, and the X-rays have another exposure; there the network misses ill women. The data of centre 2 are written as
a hospital has them: images, a table, the network's code and weights.
"""

import inspect
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from equipoise.data import MEAN, SD, Attribute, Cohort, child_seed, generator, phantom, write_text
from equipoise.errors import raise_all
from equipoise.models import Progress, Training, predict, train
from equipoise.study import small_cnn

LABEL, GROUP, REFERENCE, PATIENT = "widened_mediastinum", "sex", "M", "patient_id"
FEWEST_XRAYS = 40  # rows, so that every group has both labels in every set


@dataclass(frozen=True)
class Hospital:
    """The files of centre 2 in a folder, and the columns of its tables."""

    folder: Path
    label: str = LABEL
    group: str = GROUP
    reference: str = REFERENCE
    patient: str = PATIENT
    size: int = small_cnn.SIZE  # pixels per side

    @property
    def code(self) -> Path:
        """The network's own code, with a function `build`."""
        return self.folder / "my_model.py"

    @property
    def weights(self) -> Path:
        """The network's weights."""
        return self.folder / "net.safetensors"

    @property
    def local(self) -> Path:
        """The table of labelled X-rays."""
        return self.folder / "local.csv"

    @property
    def new(self) -> Path:
        """The table of X-rays without a label."""
        return self.folder / "new.csv"

    @property
    def scores(self) -> Path:
        """The table of the network's scores on the labelled X-rays."""
        return self.folder / "scores.csv"

    @property
    def xrays(self) -> Path:
        """The folder of images."""
        return self.folder / "xrays"


@dataclass(frozen=True)
class Centre:
    """The patients of a centre, and the properties of its X-rays."""

    men: float  # the share of men
    sick_men: float  # the share of men who are ill
    sick_women: float
    exposure: float = 1.0  # the film is raised to this power
    hardness: float = 0.2  # of seeing the disease in women, as in `phantom`
    separation: float = 1.9  # how much wider the mediastinum of ill patients is, as in `phantom`


CENTRE_1 = Centre(men=0.75, sick_men=0.5, sick_women=0.15)
CENTRE_2 = Centre(men=0.5, sick_men=0.5, sick_women=0.5, exposure=1.15)


def admit(centre: Centre, rows: int, name: str, seed: int) -> Cohort:
    """X-rays of `rows` patients of a centre, rounded to 8 bits as in an image file."""
    men = round(rows * centre.men)
    shares = (("men", men, 1.0, centre.sick_men), ("women", rows - men, 0.0, centre.sick_women))
    drawn = [
        phantom(
            count,
            size=small_cnn.SIZE,
            seed=child_seed(seed, f"{name} {who}"),
            hardness=centre.hardness,
            prevalence=sick,
            share=share,
            separation=centre.separation,
            name=who,
        )
        for who, count, share, sick in shares
    ]
    order = generator(seed, f"{name} order").permutation(rows)
    film = (torch.cat([part.inputs for part in drawn]) * SD + MEAN).clamp(0, 1) ** centre.exposure
    inputs = ((film * 255).round() / 255 - MEAN) / SD
    women = np.repeat([0, 1], [men, rows - men])[order]
    patients = pd.factorize(np.concatenate([part.patients for part in drawn if part.patients is not None])[order])[0]
    named = np.array([f"{name}-{k + 1:05}" for k in patients], dtype=object)
    y = np.concatenate([part.y for part in drawn])[order]
    return Cohort(inputs[torch.from_numpy(order)], y, (Attribute(GROUP, (REFERENCE, "F"), women),), named, name=name)


def train_at_one(rows: int, *, epochs: int = 6, seed: int = 0, progress: Progress | None = None) -> nn.Module:
    """The network of centre 1, trained on `rows` X-rays; a quarter of that number is for validation."""
    check_demo(rows, epochs, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(child_seed(seed, "weights"))
        network = small_cnn.build()
    settings = Training(epochs=epochs, learning_rate=1e-3, patience=epochs, optimiser="adamw", schedule="step", step=5)
    parts = admit(CENTRE_1, rows, "centre1", seed), admit(CENTRE_1, max(FEWEST_XRAYS, rows // 4), "centre1-valid", seed)
    return train(*parts, seed=seed, model=network, settings=settings, progress=progress)


def check_demo(rows: int, epochs: int, seed: int) -> None:
    """Raises one error with every problem of these numbers."""
    checks = {
        f"rows must be at least {FEWEST_XRAYS}, so that every group has patients with and without the disease; got {rows}": rows
        >= FEWEST_XRAYS,
        f"epochs must be at least 1; got {epochs}": epochs >= 1,
        f"seed must be at least 0; got {seed}": seed >= 0,
    }
    raise_all([problem for problem, fine in checks.items() if not fine])


def write_hospital(folder: Path, network: nn.Module, rows: int, *, new: int = 40, seed: int = 0) -> Hospital:
    """Writes the files of centre 2: the network, `rows` X-rays with labels, their scores, and `new` ones without a label."""
    place = Hospital(folder)
    place.xrays.mkdir(parents=True, exist_ok=True)
    write_text(place.code, inspect.getsource(small_cnn))
    save_file({key: value.contiguous() for key, value in network.state_dict().items()}, place.weights)
    local = admit(CENTRE_2, rows, "centre2", seed)
    table = _table(local, place)
    write_text(place.local, table.to_csv(index=False))
    write_text(place.scores, table.drop(columns="image").assign(score=predict(network, local).score).to_csv(index=False))
    arrivals = _table(admit(CENTRE_2, new, "new", seed), place)
    write_text(place.new, arrivals.drop(columns=LABEL).to_csv(index=False))
    return place


def _table(cohort: Cohort, place: Hospital) -> pd.DataFrame:
    """The rows of a cohort; their images are written to the folder."""
    names = [f"{cohort.name}-{k + 1:05}.png" for k in range(len(cohort))]
    films = ((cohort.inputs[:][:, 0] * SD + MEAN) * 255).round().to(torch.uint8).numpy()
    for name, film in zip(names, films, strict=True):
        Image.fromarray(film).save(place.xrays / name)
    return pd.DataFrame({"image": names, PATIENT: cohort.patients, GROUP: cohort.groups, LABEL: cohort.y})
