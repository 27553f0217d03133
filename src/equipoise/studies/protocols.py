"""The protocols of the paper's chest X-ray experiments: how a cohort becomes training, validation and test sets.

`balanced_parts` follows appendix "Implementation Details" of the paper: 50 % training, 25 % validation and 25 % test by patient; in every
set positives and negatives are balanced; the reference group makes up 75 % of the training set and 50 % of the others. Here both hold at
once in every set, so that label and group are independent. With more than two groups, all but the reference count as one.

`fold_parts` is a second protocol for small data, with more power: five folds by patient, each of which is the test set once. The folds of
one assignment are pooled, so that every patient is in a test set once, for a network trained on others.
"""

from collections.abc import Sequence

import numpy as np

from equipoise.data import MISSING, Cohort, IntArray, Parts, assign_folds, generator, make_parts, split
from equipoise.errors import BadInput, collecting, raise_all

FOLDS = 5  # of `fold_parts`


def balanced_parts(
    cohort: Cohort,
    *,
    seed: int = 0,
    fractions: Sequence[float] = (0.5, 0.25, 0.25),
    privileged: Sequence[float] = (0.75, 0.5, 0.5),
) -> Parts:
    """Training, validation and test sets by patient, each subsampled to the largest size with the requested balance.

    `privileged` is the share of the reference group in each set. Rows without a group are left out.
    """
    shares = np.asarray(privileged, dtype=float)
    if shares.shape != (3,) or not ((shares > 0) & (shares < 1)).all():
        raise BadInput(f"privileged must be three shares between 0 and 1, for train, validation and test; got {tuple(privileged)}")
    parts = split(cohort.take(cohort.attribute.codes != MISSING), seed=seed, fractions=fractions)
    return _subsample(parts, shares.tolist(), seed, cohort.name)


def _subsample(parts: Parts, shares: Sequence[float | None], seed: int, source: str) -> Parts:
    """The sets with balanced labels and these shares of the reference group; a set whose share is None stays unchanged."""
    balanced: list[Cohort] = []
    problems: list[str] = []
    for name, part, share in zip(("train", "valid", "test"), parts, shares, strict=True):
        with collecting(problems):
            balanced.append(part if share is None else part.take(_balanced_rows(part, share, name, generator(seed, f"balance {name}"))))
    raise_all(problems, source)
    train, valid, test = balanced
    return Parts(train, valid, test, parts.unseen)


def fold_parts(cohort: Cohort, *, seed: int = 0, privileged: Sequence[float] = (0.75, 0.5, 0.5)) -> Parts:
    """The sets of one of five folds: seeds 0 to 4 are the folds of the first assignment of patients, 5 to 9 of the second, and so on.

    The fold is the test set, unchanged; the next fold is the validation set and the other three are the training set, both subsampled to
    balanced labels and these shares of the reference group (the third is not used). Rows without a group are left out.
    """
    grouped = cohort.take(cohort.attribute.codes != MISSING)
    assignment, fold = divmod(seed, FOLDS)
    distance = (assign_folds(grouped, FOLDS, generator(assignment, "folds")) - fold) % FOLDS  # 0 is the fold itself, 1 the next
    if (patients := len(np.unique(distance))) < FOLDS:
        raise BadInput(f"{patients} patients of {cohort.name!r} are too few for {FOLDS} folds. Use more data.")
    parts = make_parts(grouped, np.maximum(2 - distance, 0))
    return _subsample(parts, (*privileged[:2], None), seed, cohort.name)


def _balanced_rows(part: Cohort, share: float, name: str, rng: np.random.Generator) -> IntArray:
    """The positions of a random sample, in order, with as many positives as negatives and this share of the reference group in both."""
    other = part.attribute.codes > 0
    cells = {(g, y): np.flatnonzero((other == bool(g)) & (part.y == y)) for g in (0, 1) for y in (0, 1)}
    portion = {0: share, 1: 1 - share}
    least = min(len(rows) / portion[g] for (g, _), rows in cells.items())
    per_label = int(least + 1e-9)  # the number of positives, and of negatives
    size = {0: round(per_label * share), 1: per_label - round(per_label * share)}
    if min(size.values()) < 1:
        names = {0: repr(part.attribute.reference), 1: " or ".join(map(repr, part.attribute.others))}
        raise BadInput(
            *(
                f"the {name} set has {len(rows)} {'positives' if y else 'negatives'} in {names[g]}, too few for a share of "
                f"{portion[g]:.0%}. Use more data, other fractions or another share."
                for (g, y), rows in cells.items()
                if len(rows) / portion[g] == least
            )
        )
    chosen = np.sort(np.concatenate([rng.choice(rows, size[g], replace=False) for (g, _), rows in cells.items()]))
    # The protocol depends on this balance, so it is verified.
    if part.y[chosen].sum() * 2 != len(chosen) or abs((~other[chosen]).mean() - share) > 0.5 / per_label + 1e-9:
        raise AssertionError(f"{name}: {part.y[chosen].mean():.3f} positive, {(~other[chosen]).mean():.3f} {part.attribute.reference}")
    return np.asarray(chosen, dtype=np.int64)
