"""Simulated chest X-rays in three sets, as in the paper: 75 % men in the training set and half in the others."""

from equipoise.data import Parts, child_seed
from equipoise.studies import phantom


def phantom_parts(n: int, *, size: int, seed: int = 0) -> Parts:
    """Training, validation and test sets of n / 2, n / 4 and n / 4 images from different patients."""
    sets = (("train", n // 2, 0.75), ("valid", n // 4, 0.5), ("test", n // 4, 0.5))
    train, valid, test = (
        phantom(rows, size=size, seed=child_seed(seed, f"phantom {part}"), share=share, name=f"phantom/{part}")
        for part, rows, share in sets
    )
    return Parts(train, valid, test)
