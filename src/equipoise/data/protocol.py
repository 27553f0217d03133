"""The parts of the paper's chest X-ray experiments: as many positives as negatives, and more of the reference group in train.

Appendix "Implementation Details" of the paper: 50 % train, 25 % validation and 25 % test by patient; in every part positives and negatives
are balanced; the reference group makes up 75 % of train and 50 % of validation and of test. Here both hold at once in every part, so the
label and the group are independent in it. With more than two groups, all but the reference count as one.

`fold_parts` is a second protocol for small data, with more power: five folds by patient, each of them the test part once, whole. The folds
of one deal are pooled, so that every patient is judged once, by a network that has not seen them.
"""

from collections.abc import Sequence

import numpy as np

from equipoise.data.attribute import MISSING, IntArray
from equipoise.data.cohort import Cohort
from equipoise.data.seeds import generator
from equipoise.data.splits import Parts, dealt, parted, split
from equipoise.errors import BadInput, raise_all


def balanced_parts(
    cohort: Cohort,
    *,
    seed: int = 0,
    fractions: Sequence[float] = (0.5, 0.25, 0.25),
    privileged: Sequence[float] = (0.75, 0.5, 0.5),
) -> Parts:
    """Train, validation and test parts by patient, each thinned at random to the largest size with the balance that is asked for.

    `privileged` is the share of the reference group in each part. Rows without a group are left out.
    """
    shares = np.asarray(privileged, dtype=float)
    if shares.shape != (3,) or not ((shares > 0) & (shares < 1)).all():
        raise BadInput(f"privileged must be three shares between 0 and 1, for train, validation and test; got {tuple(privileged)}")
    parts = split(cohort.take(cohort.attribute.codes != MISSING), seed=seed, fractions=fractions)
    return _thinned(parts, shares.tolist(), seed, cohort.name)


def _thinned(parts: Parts, shares: Sequence[float | None], seed: int, source: str) -> Parts:
    """The parts with balanced labels and these shares of the reference group; a part without a share stays as it is."""
    thin: list[Cohort] = []
    problems: list[str] = []
    for name, part, share in zip(("train", "valid", "test"), parts, shares, strict=True):
        try:
            thin.append(part if share is None else part.take(_balanced(part, share, name, generator(seed, f"balance {name}"))))
        except BadInput as error:
            problems += error.problems
    raise_all(problems, source)
    train, valid, test = thin
    return Parts(train, valid, test, parts.unseen)


FOLDS = 5


def fold_parts(cohort: Cohort, *, seed: int = 0, privileged: Sequence[float] = (0.75, 0.5, 0.5)) -> Parts:
    """One of five folds: seeds 0 to 4 are the folds of the first deal of patients, 5 to 9 those of the second, and so on.

    The fold itself is the test part, as it is; the next one is the validation part and the other three are the train part, both thinned
    at random to balanced labels and these shares of the reference group (the third is not used). Rows without a group are left out.
    """
    known = cohort.take(cohort.attribute.codes != MISSING)
    deal, fold = divmod(seed, FOLDS)
    after = (dealt(known, FOLDS, generator(deal, "folds")) - fold) % FOLDS  # 0 is the fold itself, 1 the next
    if (there := len(np.unique(after))) < FOLDS:
        raise BadInput(f"{there} patients of {cohort.name!r} are too few for {FOLDS} folds. Use more data.")
    parts = parted(known, np.where(after == 0, 2, np.where(after == 1, 1, 0)))
    return _thinned(parts, (*privileged[:2], None), seed, cohort.name)


def _balanced(part: Cohort, share: float, name: str, rng: np.random.Generator) -> IntArray:
    """Positions of a random choice with as many positives as negatives and this share of the reference group in either, in order."""
    other = part.attribute.codes > 0
    cells = {(g, y): np.flatnonzero((other == bool(g)) & (part.y == y)) for g in (0, 1) for y in (0, 1)}
    portion = {0: share, 1: 1 - share}
    each = int(min(len(rows) / portion[g] for (g, _), rows in cells.items()) + 1e-9)  # positives, and as many negatives
    size = {0: round(each * share), 1: each - round(each * share)}
    if min(size.values()) < 1:
        names = {0: repr(part.attribute.reference), 1: " or ".join(map(repr, part.attribute.others))}
        least = min(len(rows) / portion[g] for (g, _), rows in cells.items())
        raise BadInput(
            *(
                f"the {name} part has {len(rows)} {'positives' if y else 'negatives'} in {names[g]}, too few for a share of "
                f"{portion[g]:.0%}. Use more data, other fractions or another share."
                for (g, y), rows in cells.items()
                if len(rows) / portion[g] == least
            )
        )
    chosen = np.sort(np.concatenate([rng.choice(rows, size[g], replace=False) for (g, _), rows in cells.items()]))
    # The balance is the point of the protocol: checked, not trusted.
    if part.y[chosen].sum() * 2 != len(chosen) or abs((~other[chosen]).mean() - share) > 0.5 / each + 1e-9:
        raise AssertionError(f"{name}: {part.y[chosen].mean():.3f} positive, {(~other[chosen]).mean():.3f} {part.attribute.reference}")
    return np.asarray(chosen, dtype=np.int64)
