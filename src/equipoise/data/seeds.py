"""One seed in, named child generators out. Nothing seeds the global generators."""

from zlib import crc32

import numpy as np


def generator(seed: int, name: str) -> np.random.Generator:
    """The random generator of one purpose: the same for the same seed and name, independent of all others.

    >>> int(generator(0, "split").integers(100)) == int(generator(0, "split").integers(100))
    True
    """
    return np.random.default_rng([seed, crc32(name.encode())])


def child_seed(seed: int, name: str) -> int:
    """A whole number below 2**31 for libraries that take one."""
    return int(generator(seed, name).integers(2**31))
