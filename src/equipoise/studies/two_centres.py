"""The scenario of the paper on simulated chest X-rays: a classifier is trained at one centre and used at another.

Centre 1 has few women, and few of them are ill, so its network learns to associate women with health. At centre 2, as many women as men are
ill and the X-rays have a different exposure, and the network misses ill women. The data of centre 2 are written in the form in which a
hospital would have them: images, a table, and the code and weights of the network.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from equipoise.data import Attribute, Cohort, Tensors, child_seed, generator
from equipoise.disk import write_text
from equipoise.errors import raise_all
from equipoise.models import Training, predict, train
from equipoise.studies import small_cnn
from equipoise.studies.sets.phantom import PHANTOM_MEAN, PHANTOM_STD, phantom

LABEL, GROUP, REFERENCE, PATIENT = "widened_mediastinum", "sex", "M", "patient_id"
MIN_XRAYS = 40  # so that every group has both labels in every set


@dataclass(frozen=True)
class Hospital:
    """The files of centre 2, and the columns of its tables."""

    code: Path  # with a function `build` that makes the network
    weights: Path
    local: Path  # table of labelled X-rays
    new: Path  # table of X-rays without a label
    scores: Path  # table with the scores of the labelled X-rays
    xrays: Path  # folder of images
    label: str = LABEL
    group: str = GROUP
    reference: str = REFERENCE
    patient: str = PATIENT
    size: int = small_cnn.SIZE  # pixels per side


@dataclass(frozen=True)
class Centre:
    """The patients of a centre, and the properties of its X-rays; `hardness` and `separation` are parameters of `phantom`."""

    men: float  # the share of men
    sick_men: float  # the share of men who are ill
    sick_women: float
    exposure: float = 1.0  # the exponent of a power law applied to brightness
    hardness: float = 0.2  # how hard the disease is to see in women
    separation: float = 1.9  # how much wider the mediastinum of ill patients is


CENTRES = (Centre(men=0.75, sick_men=0.5, sick_women=0.15), Centre(men=0.5, sick_men=0.5, sick_women=0.5, exposure=1.15))


def simulate_xrays(centre: Centre, rows: int, name: str, seed: int) -> Cohort:
    """X-rays of `rows` patients of a centre, rounded to 8 bits as in an image file."""
    men = round(rows * centre.men)
    shares = (("men", men, 1.0, centre.sick_men), ("women", rows - men, 0.0, centre.sick_women))
    draw = partial(phantom, size=small_cnn.SIZE, hardness=centre.hardness, separation=centre.separation)
    simulated = [
        draw(count, seed=child_seed(seed, f"{name} {who}"), prevalence=sick, share=share, name=who) for who, count, share, sick in shares
    ]
    order = generator(seed, f"{name} order").permutation(rows)
    film = (torch.cat([part.inputs for part in simulated]) * PHANTOM_STD + PHANTOM_MEAN).clamp(0, 1) ** centre.exposure
    inputs = ((film * 255).round() / 255 - PHANTOM_MEAN) / PHANTOM_STD
    women = np.repeat([0, 1], [men, rows - men])[order]
    patients = pd.factorize(np.concatenate([part.patients for part in simulated if part.patients is not None])[order])[0]
    patient_ids = np.array([f"{name}-{k + 1:05}" for k in patients], dtype=object)
    y = np.concatenate([part.y for part in simulated])[order]
    return Cohort(Tensors(inputs[torch.from_numpy(order)]), y, (Attribute(GROUP, (REFERENCE, "F"), women),), patient_ids, name=name)


def train_at_centre_1(rows: int, *, epochs: int = 6, seed: int = 0, progress: Callable[[int, float], None] | None = None) -> nn.Module:
    """The network of centre 1, trained on `rows` X-rays, with a quarter as many for validation."""
    check_demo(rows, epochs, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(child_seed(seed, "weights"))
        network = small_cnn.build()
    settings = Training(epochs=epochs, learning_rate=1e-3, patience=epochs, optimiser="adamw", schedule="step", step=5)
    train_set = simulate_xrays(CENTRES[0], rows, "centre1", seed)
    valid_set = simulate_xrays(CENTRES[0], max(MIN_XRAYS, rows // 4), "centre1-valid", seed)
    return train(train_set, valid_set, seed=seed, model=network, settings=settings, progress=progress)


def check_demo(rows: int, epochs: int, seed: int) -> int:
    """The number of X-rays at centre 1 of a demo with so many at centre 2. Raises one error with every number that is too small."""
    problems = []
    if rows < MIN_XRAYS:
        problems.append(f"rows must be at least {MIN_XRAYS}, so that every group has patients with and without the disease; got {rows}")
    if epochs < 1:
        problems.append(f"epochs must be at least 1; got {epochs}")
    if seed < 0:
        problems.append(f"seed must be at least 0; got {seed}")
    raise_all(problems)
    return max(MIN_XRAYS, 3 * rows // 5)


def write_hospital(folder: Path, network: nn.Module, rows: int, *, new: int = 40, seed: int = 0) -> Hospital:
    """Writes the files of centre 2: the network, `rows` labelled X-rays with scores, and `new` ones without a label."""
    place = Hospital(
        code=folder / "my_model.py",
        weights=folder / "net.safetensors",
        local=folder / "local.csv",
        new=folder / "new.csv",
        scores=folder / "scores.csv",
        xrays=folder / "xrays",
    )
    place.xrays.mkdir(parents=True, exist_ok=True)
    write_text(place.code, inspect.getsource(small_cnn))
    save_file({key: value.contiguous() for key, value in network.state_dict().items()}, place.weights)
    local = simulate_xrays(CENTRES[1], rows, "centre2", seed)
    table = _write_images(local, place)
    write_text(place.local, table.to_csv(index=False))
    write_text(place.scores, table.drop(columns="image").assign(score=predict(network, local).score).to_csv(index=False))
    unlabelled = _write_images(simulate_xrays(CENTRES[1], new, "new", seed), place)
    write_text(place.new, unlabelled.drop(columns=LABEL).to_csv(index=False))
    return place


def _write_images(cohort: Cohort, place: Hospital) -> pd.DataFrame:
    """Writes the images of a cohort, and returns its table."""
    names = [f"{cohort.name}-{k + 1:05}.png" for k in range(len(cohort))]
    films = ((cohort.inputs[:][:, 0] * PHANTOM_STD + PHANTOM_MEAN) * 255).round().to(torch.uint8).numpy()
    for name, film in zip(names, films, strict=True):
        Image.fromarray(film).save(place.xrays / name)
    return pd.DataFrame({"image": names, PATIENT: cohort.patients, GROUP: cohort.groups, LABEL: cohort.y})
