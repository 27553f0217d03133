"""Simulated frontal chest X-rays with a known bias: the disease is a widened cardiomediastinum, harder to see in women.

Each patient has a latent width of the mediastinum relative to the thorax. It is normal with standard deviation 1 around 0 in healthy
patients, around `separation` in sick men, and around `separation * (1 - hardness)` in sick women. The image shows that width among the
other differences between people and exposures. An oracle that sees only the width has a known gap; a network also sees the sex, so its gap
may be smaller or larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING

import numpy as np

from equipoise.data import Attribute, Cohort, FloatArray, IntArray, Tensors, generator
from equipoise.errors import raise_all
from equipoise.studies.sets import Recipe, number_problems

if TYPE_CHECKING:
    from torch import Tensor

PHANTOM_MEAN, PHANTOM_STD = 0.5, 0.25  # inputs are (film - PHANTOM_MEAN) / PHANTOM_STD of a film in [0, 1]
IMAGES_PER_PATIENT = (0.7, 0.2, 0.1)  # probabilities that a patient has one, two, three images
SMALLEST, LARGEST = 16, 512
PIXELS_AT_ONCE = 2**17  # pixels painted at once: half a megabyte per array, which fits in the processor's cache


@dataclass(frozen=True, eq=False)
class Latents:
    """The ground truth of each image."""

    y: IntArray  # (n,)
    woman: IntArray  # (n,)
    patient: IntArray  # (n,) 0, 1, 2, ...
    width: FloatArray  # (n,) in standard deviations of healthy patients
    body: dict[str, FloatArray]  # by name of a trait or pose: (n,)
    marks: FloatArray  # (n, MARKINGS)
    left: IntArray  # (n,) 1 if the marker is an L
    noise: IntArray  # (n,) seeds of the grain


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
    """n simulated chest X-rays (n, 1, size, size), standardised: `inputs * PHANTOM_STD + PHANTOM_MEAN` is the film in [0, 1].

    `hardness` (0 to 1) is the share of the widening that sick women lack, `prevalence` the probability that a patient is sick, and `share`
    the probability of a man. For one seed these options change nothing else, and the first k rows are the same for every n.

    >>> cohort = phantom(20, size=32)
    >>> cohort.inputs.shape, cohort.attribute.reference, cohort.attribute.others
    (torch.Size([20, 1, 32, 32]), 'M', ('F',))
    """
    import torch  # late, so that the catalogue can be listed without it

    shares = {"hardness": (hardness, 0, 1), "prevalence": (prevalence, 0, 1), "share": (share, 0, 1)}
    problems = number_problems(Integral, n=(n, 1, np.inf), seed=(seed, 0, np.inf), size=(size, SMALLEST, LARGEST))
    problems += number_problems(Real, **shares, separation=(separation, 0, 6))  # in standard deviations
    raise_all(problems, source=name)
    # Whole chunks are painted and the surplus is dropped, since vectorised code may round the last elements of an array differently.
    chunk = max(1, PIXELS_AT_ONCE // size**2)
    truth = latents(-(-n // chunk) * chunk, seed=seed, hardness=hardness, prevalence=prevalence, share=share, separation=separation)
    inputs = torch.empty(n, 1, size, size)
    for start in range(0, n, chunk):
        stop = min(start + chunk, n)
        inputs[start:stop, 0] = expose(truth, np.arange(start, start + chunk), size)[: stop - start]
    sex = Attribute("sex", ("M", "F"), truth.woman[:n])
    patients = np.array([f"{name}-{k}" for k in truth.patient[:n]], dtype=object)
    return Cohort(Tensors(inputs), truth.y[:n], (sex,), patients, name=name)


def latents(n: int, *, seed: int, hardness: float, prevalence: float, share: float, separation: float) -> Latents:
    """The ground truth of n images. Each quantity has its own random stream, so the first rows do not depend on n."""
    from equipoise.studies.sets.anatomy import MARKINGS, POSES, SHIFT_IN_WOMEN, TRAITS

    sizes = 1 + np.searchsorted(np.cumsum(IMAGES_PER_PATIENT)[:-1], generator(seed, "phantom images").random(n), side="right")
    patient = np.repeat(np.arange(n), sizes)[:n]
    woman = (generator(seed, "phantom sex").random(n) >= share).astype(np.int64)
    y = (generator(seed, "phantom label").random(n) < prevalence).astype(np.int64)
    width = generator(seed, "phantom width").standard_normal(n) + separation * y * (1 - hardness * woman)
    # Cut at 2.5 standard deviations: a body beyond that is not plausible.
    traits = generator(seed, "phantom traits").standard_normal((n, len(TRAITS))).clip(-2.5, 2.5)
    poses = generator(seed, "phantom poses").standard_normal((n, len(POSES))).clip(-2.5, 2.5)
    marks = generator(seed, "phantom markings").standard_normal((n, MARKINGS))
    body = {
        trait: (mean + sd * traits[:, k] + SHIFT_IN_WOMEN.get(trait, 0.0) * woman)[patient]
        for k, (trait, (mean, sd)) in enumerate(TRAITS.items())
    }
    body |= {pose: mean + sd * poses[:, k] for k, (pose, (mean, sd)) in enumerate(POSES.items())}
    left = generator(seed, "phantom marker").integers(0, 2, n)
    noise = generator(seed, "phantom noise").integers(2**62, size=n)
    return Latents(y[patient], woman[patient], patient, width[patient], body, marks[patient], left, noise)


def expose(truth: Latents, rows: IntArray, size: int) -> Tensor:
    """The standardised images of some rows (b, size, size)."""
    import torch

    from equipoise.studies.sets.anatomy import paint

    def tensor(values: FloatArray) -> Tensor:
        return torch.from_numpy(values[rows].astype(np.float32))

    body = {name: tensor(values) for name, values in truth.body.items()}
    film = paint(body, tensor(truth.width), tensor(truth.marks), torch.from_numpy(truth.left[rows]), size)
    grain = torch.empty_like(film)
    random = torch.Generator()
    for image, seed in zip(grain, truth.noise[rows].tolist(), strict=True):
        image.normal_(generator=random.manual_seed(seed))
    film.addcmul_(grain, body["grain"][:, None, None]).clamp_(0, 1)
    return film.sub_(PHANTOM_MEAN).div_(PHANTOM_STD)


PHANTOM = (
    Recipe(
        name="phantom",
        load=phantom,
        attribute="sex",
        description="simulated chest X-rays: a widened cardiomediastinum, harder to see in women by the option hardness",
        citation="Equipoise",
        rows=2_000,
        features=64 * 64,
    ),
)
