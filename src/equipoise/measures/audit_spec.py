"""What an audit reports (`AuditSpec`). No large package is imported: mistakes are reported at once."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, field_validator

from equipoise.errors import BadInput
from equipoise.measures.measure_table import MEASURES, OVERALL, PERFORMANCE, SUMMARIES, SUMMARY_FORMS, Gap, canonical_name
from equipoise.specification import Specification, setting

RANGE_STEPS = 18  # between the ends of a range, if no step is given
MOST_THRESHOLDS = 200  # in a range


def thresholds_of(thresholds: str | Sequence[float]) -> tuple[float, ...]:
    """The thresholds in ascending order, from a range START:STOP or START:STOP:STEP, or from a sequence.

    >>> thresholds_of("0.1:0.3:0.1"), len(thresholds_of("0.05:0.5")), thresholds_of([0.5, 0.2])
    ((0.1, 0.2, 0.3), 19, (0.2, 0.5))
    """
    if not isinstance(thresholds, str):
        cuts = tuple(sorted({float(value) for value in thresholds}))
        if any(not 0 < cut < 1 for cut in cuts):
            raise BadInput(f"thresholds of decision curves must be between 0 and 1, without these ends; got {', '.join(map(str, cuts))}")
        return cuts
    try:
        numbers = [float(part) for part in thresholds.split(":")]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3):
        raise BadInput(f"thresholds must be START:STOP or START:STOP:STEP, as in 0.05:0.5; got {thresholds!r}")
    start, stop = numbers[:2]
    step = numbers[2] if len(numbers) == 3 else (stop - start) / RANGE_STEPS
    if not 0 < start <= stop < 1 or (stop > start and not step > 0):
        raise BadInput(f"thresholds must ascend between 0 and 1, without these ends, by a step above 0; got {thresholds!r}")
    count = 1 if start == stop else math.floor((stop - start) / step + 1e-9) + 1
    if count > MOST_THRESHOLDS:
        raise BadInput(f"{count:,} thresholds in {thresholds!r}; at most {MOST_THRESHOLDS} are computed. Use a larger step.")
    return tuple(round(start + k * step, 10) for k in range(count))


NONE_OF_THE_LABELS = "none of the labels"  # given instead of the name of a label where no label means "no finding"


HARM = ("eod", "fpr_gap")  # the measures of missed findings and false alarms

REPORTED = (*OVERALL, *SUMMARIES)


def _measure_name(measure: Gap) -> str:
    """The canonical name of a measure of an audit; an invalid one is an error before anything is computed."""
    return str(measure) if measure in REPORTED else canonical_name(measure, also=(*OVERALL, SUMMARY_FORMS))


MeasureName = Annotated[Gap, AfterValidator(_measure_name)]


class AuditSpec(Specification):
    """What an audit reports: measures, the level of intervals, and the number of patients that a cell needs.

    >>> AuditSpec(measures=("0.5*tpr+0.5*fpr", "auroc")).gaps
    ('aod',)
    """

    measures: tuple[MeasureName, ...] | None = setting(
        "Only this measure (spd, eod, fpr_gap, ppv_gap, tpr_worst, auroc_gap, ... or a sum of rates such as tpr-fpr), with an error for "
        "empty cells; repeat it for more.",
        None,
        flag="--measure",
    )
    also: tuple[MeasureName, ...] = setting("Measures in addition to the default ones.", ())
    primary: tuple[Annotated[Gap, AfterValidator(canonical_name)], ...] = setting(
        "Measures that are tested; by default those of missed findings and false alarms, or those of --measure.", ()
    )
    intersections: bool = setting("Also audit the intersections of several group columns.", True, flag="--intersections")
    valid: Path | None = setting(
        "File with the same columns on which the threshold with the best balanced accuracy is chosen.", None, flag="--valid"
    )
    optimise: str = setting("Performance measure by which a threshold is chosen.", "balanced_accuracy")
    shrink: bool = setting(
        "Also report shrunken gaps (empirical Bayes) of attributes with at least four groups, such as intersections.", False
    )
    probe: bool = setting(
        "Also report how well each layer of the model predicts the group; this does not show that the network uses it.", False
    )
    draws: int = setting("Number of bootstrap resamples of the probes.", 1000, ge=2)
    level: float = setting("Confidence level of the intervals.", 0.95, ge=0.01, le=0.9999)
    seed: int = setting("Seed of permutations, resamples and the band of a calibrated model.", 0, ge=0)
    min_patients: int = setting("Cells with fewer patients are reported as 'insufficient data'.", 5, ge=1)
    specificity: float = setting("Specificity at which the sensitivity of each group is reported (--verbose).", 0.9, gt=0, lt=1)
    sensitivity: float = setting("Sensitivity at which the specificity of each group is reported (--verbose).", 0.9, gt=0, lt=1)
    thresholds: str | tuple[float, ...] = setting(
        "Thresholds of the decision curves, START:STOP or START:STOP:STEP (--verbose, report.figures, --json).", "0.05:0.5"
    )
    no_finding: str | None = setting(
        "Label that means 'no finding', to report underdiagnosis (its false positive rate); or 'none of the labels'.", None
    )

    @field_validator("primary", "also", mode="before")
    @classmethod
    def _several(cls, value: Any) -> Any:
        """One measure is a tuple of one."""
        return (value,) if isinstance(value, str) else value

    @field_validator("thresholds", mode="before")
    @classmethod
    def _range(cls, thresholds: Any) -> Any:
        """A range in words stays as it is, once it can be read; other thresholds are sorted."""
        cuts = thresholds_of(thresholds)
        return thresholds if isinstance(thresholds, str) else cuts

    @property
    def wanted(self) -> tuple[str, ...]:
        """The names of all measures."""
        default = (name for name, measure in MEASURES.items() if not measure.is_quotient)
        names = (*default, *OVERALL) if self.measures is None else self.measures
        return tuple(dict.fromkeys(map(str, (*names, *self.also, *self.primary))))

    @property
    def tested(self) -> tuple[str, ...]:
        """The gaps that are tested: the primary ones, and those asked for in addition."""
        named = self.primary or self.measures or HARM
        return tuple(m for m in self.gaps if m in {*map(str, named), *map(str, self.also)})

    @property
    def gaps(self) -> tuple[str, ...]:
        """The gaps among the measures."""
        return tuple(m for m in self.wanted if m not in REPORTED)

    @property
    def summaries(self) -> tuple[str, ...]:
        """The summaries of groups among the measures: ratios, ranges, worst groups, and differences in measures of scores."""
        return tuple(m for m in self.wanted if m in SUMMARIES)

    @property
    def performance(self) -> tuple[str, ...]:
        """The performance measures."""
        return tuple(m for m in self.wanted if m in PERFORMANCE)
