"""The thresholds of decision curves, as a range in words or one by one. Without NumPy, so that a mistake is reported at once."""

import math
from collections.abc import Sequence

from equipoise.errors import BadInput

STEPS = 18  # between the ends of a range, if no step is given
MOST = 200
USUAL = "0.05:0.5"  # the range of thresholds unless another is asked for


def read_range(text: str) -> tuple[float, ...]:
    """The thresholds that START:STOP or START:STOP:STEP names.

    >>> read_range("0.1:0.3:0.1"), len(read_range("0.05:0.5"))
    ((0.1, 0.2, 0.3), 19)
    """
    try:
        numbers = [float(part) for part in text.split(":")]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3):
        raise BadInput(f"thresholds must be START:STOP or START:STOP:STEP, as in 0.05:0.5; got {text!r}")
    start, stop = numbers[:2]
    step = numbers[2] if len(numbers) == 3 else (stop - start) / STEPS
    if not 0 < start <= stop < 1 or (stop > start and not step > 0):
        raise BadInput(f"thresholds must ascend between 0 and 1, without these ends, by a step above 0; got {text!r}")
    count = 1 if start == stop else math.floor((stop - start) / step + 1e-9) + 1
    if count > MOST:
        raise BadInput(f"{count:,} thresholds in {text!r}; at most {MOST} are computed. Use a larger step.")
    return tuple(round(start + k * step, 10) for k in range(count))


def thresholds_of(given: str | Sequence[float]) -> tuple[float, ...]:
    """The thresholds of a range in words, or those that are given, in ascending order."""
    if isinstance(given, str):
        return read_range(given)
    cuts = tuple(sorted({float(value) for value in given}))
    if any(not 0 < cut < 1 for cut in cuts):
        raise BadInput(f"thresholds of decision curves must be between 0 and 1, without these ends; got {', '.join(map(str, cuts))}")
    return cuts
