"""Simulated chest X-rays: the distribution of the draws, the oracle against its closed form, and measurements on the films."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm

from equipoise.data import Scores
from equipoise.errors import BadInput
from equipoise.measures import sweep
from equipoise.studies import PHANTOM_MEAN, PHANTOM_STD, phantom
from equipoise.studies.sets.anatomy import POSES, TRAITS
from equipoise.studies.sets.phantom import PIXELS_AT_ONCE, expose, latents

KNOBS = {"seed": 0, "hardness": 0.5, "prevalence": 0.5, "share": 0.5, "separation": 2.5}


def oracle(n: int, **knobs: float) -> Scores:
    """The rows of `phantom` with the score of a classifier that sees the latent width and not the sex."""
    knobs = KNOBS | knobs
    truth = latents(n, **knobs)  # type: ignore[arg-type]
    patients = np.array([f"phantom-{k}" for k in truth.patient], dtype=object)
    score = norm.cdf(truth.width - knobs["separation"] / 2)
    return Scores.from_arrays(truth.y, score, np.where(truth.woman, "F", "M"), reference="M", patients=patients)


def oracle_gap(scores: Scores) -> float:
    found = sweep(scores.score, scores.y, scores.attribute).best()
    return float(found.values["eod"])


def film(cohort) -> np.ndarray:  # type: ignore[no-untyped-def,type-arg]
    return (cohort.inputs[:, 0] * PHANTOM_STD + PHANTOM_MEAN).numpy()


def test_one_seed_one_cohort() -> None:
    first, again, other = phantom(60, size=32, seed=7), phantom(60, size=32, seed=7), phantom(60, size=32, seed=8)
    assert torch.equal(first.inputs, again.inputs)
    assert np.array_equal(first.y, again.y)
    assert np.array_equal(first.groups, again.groups)
    assert not np.array_equal(first.y, other.y)
    assert not torch.equal(first.inputs, other.inputs)


@pytest.mark.parametrize("size", [16, 33, 64, 128, 512])
def test_every_size_gives_a_standardised_film(size: int) -> None:
    cohort = phantom(3, size=size)
    assert cohort.inputs.shape == (3, 1, size, size)
    assert cohort.inputs.dtype == torch.float32
    assert film(cohort).min() >= -1e-6
    assert film(cohort).max() <= 1 + 1e-6
    assert film(cohort).std() > 0.15


def test_the_same_patients_at_another_size() -> None:
    small, large = (phantom(8, size=s) for s in (32, 128))
    coarse = torch.nn.functional.avg_pool2d(large.inputs, 4)
    assert np.corrcoef(coarse.numpy().ravel(), small.inputs.numpy().ravel())[0, 1] > 0.98


def test_the_first_rows_do_not_depend_on_n() -> None:
    chunk = PIXELS_AT_ONCE // 64**2
    long = phantom(2 * chunk + 5)
    for k in (1, chunk - 1, chunk + 3):
        short = phantom(k)
        assert torch.equal(short.inputs, long.inputs[:k])
        assert np.array_equal(short.y, long.y[:k])
        assert short.patients is not None
        assert long.patients is not None
        assert np.array_equal(short.patients, long.patients[:k])


def test_an_image_does_not_depend_on_its_batch() -> None:
    truth = latents(40, **KNOBS)  # type: ignore[arg-type]
    together = expose(truth, np.arange(40), 48)
    alone = torch.cat([expose(truth, np.array([i]), 48) for i in (0, 13, 39)])
    assert torch.allclose(together[[0, 13, 39]], alone, atol=1e-4)


def test_prevalence_and_share() -> None:
    truth = latents(20_000, **{**KNOBS, "prevalence": 0.2, "share": 0.75})  # type: ignore[arg-type]
    assert truth.y.mean() == pytest.approx(0.2, abs=0.02)
    assert truth.woman.mean() == pytest.approx(0.25, abs=0.02)
    assert truth.y[truth.woman == 1].mean() == pytest.approx(0.2, abs=0.03)
    assert set(phantom(40, size=16, share=1.0).groups) == {"M"}
    assert phantom(40, size=16, prevalence=0.0).y.sum() == 0


def test_an_option_changes_nothing_else() -> None:
    easy, hard = (latents(500, **{**KNOBS, "hardness": h}) for h in (0.0, 1.0))  # type: ignore[arg-type]
    moved = (easy.y == 1) & (easy.woman == 1)
    assert np.array_equal(easy.width != hard.width, moved)
    assert all(np.array_equal(easy.body[k], hard.body[k]) for k in easy.body)
    few, many = (latents(500, **{**KNOBS, "share": s}) for s in (0.3, 0.7))  # type: ignore[arg-type]
    assert np.array_equal(few.y, many.y)
    assert (few.woman >= many.woman).all()


def test_images_of_a_patient_share_the_anatomy_and_not_the_exposure() -> None:
    truth = latents(2_000, **KNOBS)  # type: ignore[arg-type]
    frame = pd.DataFrame({**truth.body, "y": truth.y, "woman": truth.woman, "width": truth.width})
    kinds = frame.groupby(truth.patient).nunique()
    images = np.bincount(truth.patient)
    assert (kinds[[*TRAITS, "y", "woman", "width"]] == 1).all(axis=None)
    assert (kinds["angle"] == images).mean() > 0.98  # but for poses that are cut at the same limit
    assert set(POSES) < set(frame)
    assert np.bincount(images)[1:] / len(images) == pytest.approx([0.7, 0.2, 0.1], abs=0.04)


def test_hardness_sets_the_gap_of_the_oracle() -> None:
    gaps = [oracle_gap(oracle(40_000, hardness=h)) for h in (0.0, 0.25, 0.5, 0.75)]
    assert abs(gaps[0]) < 0.02
    assert gaps[0] > gaps[1] > gaps[2] > gaps[3]
    # The closed form: one threshold for two pairs of normal distributions.
    t = np.linspace(0, 2.5, 1_001)
    reward = norm.sf(t - 2.5) + norm.sf(t - 1.25) - 2 * norm.sf(t)
    best = t[reward.argmax()]
    assert gaps[2] == pytest.approx(norm.sf(best - 1.25) - norm.sf(best - 2.5), abs=0.04)


def test_the_oracle_scores_the_rows_of_the_cohort() -> None:
    cohort, scores = phantom(50, size=16, seed=3), oracle(50, seed=3)
    assert np.array_equal(cohort.y, scores.y)
    assert np.array_equal(cohort.groups, scores.groups)
    assert np.array_equal(cohort.patients, scores.patients)  # type: ignore[arg-type]


def test_disease_widens_the_mediastinum_on_the_film() -> None:
    cohort = phantom(600, size=128, hardness=0.0)
    # Great vessels: the bright run across the middle, in pixels.
    width = (film(cohort)[:, 48:60, 34:94] > 0.45).sum(-1).mean(-1)
    truth = latents(600, **{**KNOBS, "hardness": 0.0})  # type: ignore[arg-type]
    for sex in "MF":
        here = cohort.groups == sex
        assert width[here & (cohort.y == 1)].mean() > width[here & (cohort.y == 0)].mean() + 2
        assert np.corrcoef(width[here], truth.width[here])[0, 1] > 0.5


def test_women_have_brighter_lower_lungs_and_a_smaller_thorax() -> None:
    cohort = phantom(400, prevalence=0.0)
    women = cohort.groups == "F"
    right_lung = film(cohort)[:, 34:40, 14:22].mean((1, 2)) - film(cohort)[:, 18:24, 18:24].mean((1, 2))
    assert right_lung[women].mean() > right_lung[~women].mean() + 0.05
    truth = latents(400, **{**KNOBS, "prevalence": 0.0})  # type: ignore[arg-type]
    assert truth.body["thorax"][women].mean() < truth.body["thorax"][~women].mean() - 0.03


@pytest.mark.parametrize(
    ("draw", "says"),
    [
        (lambda: phantom(0), ["n must", "got 0"]),
        (lambda: phantom(10, size=8), ["size must", "16 to 512", "got 8"]),
        (lambda: phantom(10, size=513), ["size"]),
        (
            lambda: phantom(True, seed=-1, hardness=1.1, prevalence=-0.1, share="half"),
            ["n must", "seed", "hardness", "prevalence", "share"],
        ),  # type: ignore[arg-type]
        (lambda: phantom(10, separation=float("nan")), ["separation must", "0 to 6"]),
    ],
)
def test_bad_arguments_are_all_named(draw, says: list[str]) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(BadInput) as caught:
        draw()
    assert all(part in str(caught.value) for part in says)
