"""`AuditSpec`: what an audit reports and how. It is the section [audit] of a case file and the keywords of `eq.audit`."""

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, field_validator

from equipoise.measures.gaps import GAPS, OVERALL, PERFORMANCE, Gap, canonical_name, thresholds_of
from equipoise.specification import Specification, setting

DERIVED = "derived"  # given instead of the name of a label: no label means "no finding", so it is derived


def _name(measure: Gap) -> str:
    """The canonical name of a measure of an audit; an invalid one is an error before anything is computed."""
    return str(measure) if measure in OVERALL else canonical_name(measure, also=OVERALL)


Named = Annotated[Gap, AfterValidator(_name)]


class AuditSpec(Specification):
    """What an audit reports: measures, the level of intervals, and the number of patients that a cell needs.

    >>> AuditSpec(measures=("0.5*tpr+0.5*fpr", "auroc")).gaps
    ('aod',)
    """

    measures: tuple[Named, ...] | None = setting(
        "Only this measure (spd, eod, fpr_gap, ppv_gap, ... or a sum of rates such as tpr-fpr), with an error for empty cells; repeat it "
        "for more.",
        None,
        flag="--measure",
    )
    also: tuple[Named, ...] = setting("Measures in addition to the default ones.", ())
    valid: Path | None = setting(
        "File with the same columns on which the threshold with the best balanced accuracy is chosen.", None, flag="--valid"
    )
    optimise: str = setting("Performance measure by which a threshold is chosen.", "balanced_accuracy")
    train: Path | None = setting(
        "File with the training set in the same columns: a logistic regression on the same inputs is fitted to it, and reported where it "
        "clearly does better than the model.",
        None,
    )
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
        "Label that means 'no finding', to report underdiagnosis (its false positive rate); or 'derived': none of the labels.", None
    )

    @field_validator("thresholds", mode="before")
    @classmethod
    def _range(cls, thresholds: Any) -> Any:
        """A range in words stays as it is, once it can be read; other thresholds are sorted."""
        cuts = thresholds_of(thresholds)
        return thresholds if isinstance(thresholds, str) else cuts

    @property
    def curve_thresholds(self) -> tuple[float, ...]:
        """The thresholds of the decision curves, in ascending order."""
        return thresholds_of(self.thresholds)

    @property
    def wanted(self) -> tuple[str, ...]:
        """The names of all measures."""
        names = (*GAPS, *OVERALL) if self.measures is None else self.measures
        return tuple(dict.fromkeys(map(str, (*names, *self.also))))

    @property
    def gaps(self) -> tuple[str, ...]:
        """The gaps among the measures."""
        return tuple(m for m in self.wanted if m not in OVERALL)

    @property
    def performance(self) -> tuple[str, ...]:
        """The performance measures."""
        return tuple(m for m in self.wanted if m in PERFORMANCE)
