"""Simulated frontal chest X-rays with a known bias: the disease is a widened cardiomediastinum, harder to see in women.

Each patient has a latent width of the mediastinum, relative to the thorax: normal with standard deviation 1 around 0 where healthy,
around `separation` in men who are sick, and around `separation * (1 - hardness)` in women who are. The picture shows that width among
everything else that differs between people and exposures. The oracle knows only the width, so its gap is known; a network also sees the
sex, so that its gap may be smaller or larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np

from equipoise.data.attribute import Attribute, FloatArray, IntArray
from equipoise.data.cohort import Cohort
from equipoise.data.sets import Recipe, whole
from equipoise.data.splits import Parts, child_seed, generator
from equipoise.errors import raise_all

if TYPE_CHECKING:
    from torch import Tensor

MEAN, SD = 0.5, 0.25  # inputs are (film - MEAN) / SD of a film in [0, 1]
IMAGES = (0.7, 0.2, 0.1)  # chance that a patient has one, two, three images
SMALLEST, LARGEST = 16, 512
CHUNK = 2**17  # pixels painted at once: half a megabyte per array, which stays in the cache


@dataclass(frozen=True, eq=False)
class Latents:
    """What is behind the images, row by row: the truth that no classifier sees."""

    y: IntArray  # (n,)
    woman: IntArray  # (n,)
    patient: IntArray  # (n,) 0, 1, 2, ...
    width: FloatArray  # (n,) in standard deviations of the healthy
    body: dict[str, FloatArray]  # a trait or a pose: (n,)
    marks: FloatArray  # (n, MARKINGS)
    left: IntArray  # (n,) 1: the marker is an L
    noise: IntArray  # (n,) the seed of each image's grain


def phantom(
    n: int = 2_000,
    *,
    size: int = 64,
    seed: int = 0,
    hardness: float = 0.5,
    prevalence: float = 0.5,
    share: float = 0.5,
    separation: float = 2.5,
    name: str = "phantom",
) -> Cohort:
    """n simulated chest X-rays (n, 1, size, size), standardised: `inputs * SD + MEAN` is the film in [0, 1].

    `hardness` (0 to 1) takes that share of the widening away in women who are sick, `prevalence` is the chance that a patient is sick,
    `share` that one is a man. With one seed the knobs change nothing else, and the first k rows are the same for every n.

    >>> cohort = phantom(20, size=32)
    >>> cohort.inputs.shape, cohort.attribute.reference, cohort.attribute.others
    (torch.Size([20, 1, 32, 32]), 'M', ('F',))
    """
    import torch  # only here, so that the catalogue can be listed without it

    problems = _problems(n, seed, hardness, prevalence, share, separation)
    if not whole(size, SMALLEST) or size > LARGEST:
        problems.append(f"size must be a whole number of pixels from {SMALLEST} to {LARGEST}; got {size!r}")
    raise_all(problems, source=name)
    # Whole chunks are painted and the surplus is dropped: vectorised code may round its last lanes differently.
    chunk = max(1, CHUNK // size**2)
    truth = latents(-(-n // chunk) * chunk, seed=seed, hardness=hardness, prevalence=prevalence, share=share, separation=separation)
    inputs = torch.empty(n, 1, size, size)
    for start in range(0, n, chunk):
        stop = min(start + chunk, n)
        inputs[start:stop, 0] = expose(truth, np.arange(start, start + chunk), size)[: stop - start]
    return _cohort(inputs, truth, n, name)


def phantom_parts(
    n: int = 4_000, *, size: int = 64, seed: int = 0, hardness: float = 0.5, train_share: float = 0.75, prevalence: float = 0.5
) -> Parts:
    """Train, validation and test sets of n / 2, n / 4 and n / 4 images, as in the paper: `train_share` of men where the network is
    trained, half men and half women where it is used. They come from different patients.

    >>> [len(part) for part in phantom_parts(40, size=16)]
    [20, 10, 10]
    """
    # The sets have seeds of their own, so a bad seed must be refused here.
    problems = [] if whole(n, 4) else [f"n must be a whole number of at least 4 images; got {n!r}"]
    if not whole(seed, 0):
        problems.append(f"seed must be a whole number of at least 0; got {seed!r}")
    if not _within(train_share, 1.0):
        problems.append(f"train_share must be a number from 0 to 1; got {train_share!r}")
    raise_all(problems, source="phantom_parts")
    centres = (("train", n // 2, train_share), ("valid", n // 4, 0.5), ("test", n // 4, 0.5))
    train, valid, test = (
        phantom(
            rows,
            size=size,
            seed=child_seed(seed, f"phantom {part}"),
            hardness=hardness,
            prevalence=prevalence,
            share=share,
            name=f"phantom/{part}",
        )
        for part, rows, share in centres
    )
    return Parts(train, valid, test)


def latents(n: int, *, seed: int, hardness: float, prevalence: float, share: float, separation: float) -> Latents:
    """What is behind n rows. Every draw is one a row from a stream of its own, so that the first rows do not depend on n."""
    from equipoise.data.sets.anatomy import MARKINGS, POSES, TRAITS, WOMEN

    sizes = 1 + np.searchsorted(np.cumsum(IMAGES)[:-1], generator(seed, "phantom images").random(n), side="right")
    patient = np.repeat(np.arange(n), sizes)[:n]
    woman = (generator(seed, "phantom sex").random(n) >= share).astype(np.int64)
    y = (generator(seed, "phantom label").random(n) < prevalence).astype(np.int64)
    width = generator(seed, "phantom width").standard_normal(n) + separation * y * (1 - hardness * woman)
    traits = generator(seed, "phantom traits").standard_normal((n, len(TRAITS)))
    poses = generator(seed, "phantom poses").standard_normal((n, len(POSES)))
    marks = generator(seed, "phantom markings").standard_normal((n, MARKINGS))
    body = {
        trait: (mean + sd * _tame(traits[:, k]) + WOMEN.get(trait, 0.0) * woman)[patient]
        for k, (trait, (mean, sd)) in enumerate(TRAITS.items())
    }
    body |= {pose: mean + sd * _tame(poses[:, k]) for k, (pose, (mean, sd)) in enumerate(POSES.items())}
    left = generator(seed, "phantom marker").integers(0, 2, n)
    noise = generator(seed, "phantom noise").integers(2**62, size=n)
    return Latents(y[patient], woman[patient], patient, width[patient], body, marks[patient], left, noise)


def expose(truth: Latents, rows: IntArray, size: int) -> Tensor:
    """The standardised images of some rows (b, size, size). The grain of a row depends only on its own seed."""
    import torch

    from equipoise.data.sets.anatomy import paint

    body = {name: _single(values[rows]) for name, values in truth.body.items()}
    film = paint(body, _single(truth.width[rows]), _single(truth.marks[rows]), torch.from_numpy(truth.left[rows]), size)
    grain = torch.empty_like(film)
    source = torch.Generator()
    for image, own in zip(grain, truth.noise[rows].tolist(), strict=True):
        image.normal_(generator=source.manual_seed(own))
    film.addcmul_(grain, body["grain"][:, None, None]).clamp_(0, 1)
    return film.sub_(MEAN).div_(SD)


def _cohort(inputs: Tensor, truth: Latents, n: int, name: str) -> Cohort:
    sex = Attribute("sex", ("M", "F"), truth.woman[:n])
    patients = np.array([f"{name}-{k}" for k in truth.patient[:n]], dtype=object)
    return Cohort(inputs, truth.y[:n], (sex,), patients, name=name)


def _tame(normal: FloatArray) -> FloatArray:
    """Cut at 2.5 standard deviations: a body beyond that is not plausible."""
    return np.clip(normal, -2.5, 2.5)


def _single(values: FloatArray) -> Tensor:
    import torch

    return torch.from_numpy(values.astype(np.float32))


def _problems(n: object, seed: object, hardness: object, prevalence: object, share: object, separation: object) -> list[str]:
    problems = [] if whole(n, 1) else [f"n must be a whole number of at least 1 image; got {n!r}"]
    if not whole(seed, 0):
        problems.append(f"seed must be a whole number of at least 0; got {seed!r}")
    shares = {"hardness": hardness, "prevalence": prevalence, "share": share}
    problems += [f"{what} must be a number from 0 to 1; got {value!r}" for what, value in shares.items() if not _within(value, 1.0)]
    if not _within(separation, 6.0):
        problems.append(f"separation must be a number from 0 to 6 standard deviations; got {separation!r}")
    return problems


def _within(value: object, most: float) -> bool:
    return isinstance(value, Real) and 0.0 <= float(value) <= most


RECIPES = (
    Recipe(
        name="phantom",
        load=phantom,
        files=(),
        attribute="sex",
        description="simulated chest X-rays: a widened cardiomediastinum, harder to see in women by the option hardness",
        citation="Equipoise",
        licence="simulated",
        rows=2_000,
        features=64 * 64,
    ),
)
