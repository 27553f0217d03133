"""The audit of tables on disk, of any number of rows, in memory that does not grow with them.

Several labels of one table are read together and measured one after another, in the memory of one; they are one family of comparisons.
A table of up to `HELD` rows is audited as it is in memory, exactly. A larger one is kept in files that each hold all rows of their
patients, and is audited by sums over those files:

- rates, gaps, their intervals and tests, accuracy, balanced accuracy and F1 follow from sums by patient and their second moments, which
  add up: the same numbers as in memory
- Brier score and calibration in the large are means over rows, so they follow from such sums too
- AUROC and average precision come from counts of scores in narrow bins
- calibration intercept, slope and error, operating points and decision curves, and the test of a group with few patients, use a random
  sample of whole patients of at least `SAMPLED` rows of each group, or all rows of a smaller group. Their intervals are those of that
  sample, and the audit states its size (`sampled`).
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Unpack

import numpy as np
import pandas as pd

from equipoise.data import Attribute, IntArray, Scan, Scores, Stored, Varying, patients_varying, read_labels
from equipoise.errors import BadInput
from equipoise.measures.audit import DERIVED, NO_FINDING, Audit, Audits, none_of_rows
from equipoise.measures.auditing import Asked, AuditOptions, Measured, Progress, audits_of, measured, no_finding_asked, overall_measures
from equipoise.measures.calibration import Scored
from equipoise.measures.cells import Cells, FloatArray, grouped, ratio
from equipoise.measures.clusters import units_of
from equipoise.measures.estimates import Estimate, aurocs, coefficients, frames_of, performance_of
from equipoise.measures.intervals import Limits, auroc_interval, fewer_clusters, wilson
from equipoise.measures.many_rows import BINS, SAMPLED, Binned, Losses, losses_of, of_all_rows, score_bins
from equipoise.measures.moments import Moments, moments_of
from equipoise.measures.permutation import MANY, MANY_EVENTS, hypergeometric_p, p_values
from equipoise.measures.score_measures import CURVES, EVERYONE, ScoreMeasures, estimate_scores, with_score_measures
from equipoise.measures.thresholds import Rule

MOST_BINS = 2**22  # of all groups together; with many groups, neighbouring bins are joined


class Source(Protocol):
    """Rows in parts, each with all rows of its patients."""

    @property
    def name(self) -> str: ...
    @property
    def attributes(self) -> tuple[Attribute, ...]: ...
    @property
    def whole(self) -> bool: ...
    @property
    def count(self) -> int: ...
    def parts(self) -> Iterator[Scores]: ...


@dataclass(eq=False)
class _Tally:
    """The sums of one attribute, part by part."""

    groups: int
    sums: Moments | None = None
    losses: Losses | None = None
    counts: FloatArray = field(init=False)  # (groups, 2, bins): weight of the rows by label and bin of the score
    rows: FloatArray | None = None  # the same without weights, where there are weights
    width: int = 1  # neighbouring bins that are joined

    def __post_init__(self) -> None:
        while 2 * self.groups * (BINS // self.width + 1) > MOST_BINS:
            self.width *= 2
        self.counts = np.zeros((self.groups, 2, BINS // self.width + 1))
        self.sampled: list[tuple[Any, ...]] = []
        self.kept = np.zeros(self.groups, np.int64)  # rows of each group in the sample
        self.patients = 0

    def add(
        self, f: FloatArray, y: IntArray, score: FloatArray, bins: IntArray, codes: IntArray, units: IntArray, w: FloatArray | None
    ) -> None:
        """Adds the rows of one part."""
        own = moments_of(f, y, codes, self.groups, units, w)
        self.sums = own if self.sums is None else self.sums + own
        lost = losses_of(Scored.of(score, y, codes, self.groups, units, w))
        self.losses = lost if self.losses is None else self.losses + lost
        known = codes >= 0
        cell = ((codes * 2 + y) * self.counts.shape[-1] + bins // self.width)[known]
        self.counts += np.bincount(cell, None if w is None else w[known], self.counts.size).reshape(self.counts.shape)
        if w is not None:
            plain = np.bincount(cell, minlength=self.counts.size).reshape(self.counts.shape)
            self.rows = plain.astype(np.float64) if self.rows is None else self.rows + plain
        open_ = np.append(self.kept < SAMPLED, False)
        rows = np.flatnonzero(open_[codes])
        self.sampled.append((y[rows], score[rows], f[rows], codes[rows], units[rows] + self.patients, None if w is None else w[rows]))
        self.kept += np.bincount(codes[rows], minlength=self.groups)
        self.patients += int(units.max(initial=-1)) + 1

    def sample(self, keep: IntArray) -> tuple[IntArray, FloatArray, FloatArray, IntArray, IntArray, FloatArray | None]:
        """The sampled rows of the groups in `keep` (their new codes by old ones): y, scores, decisions, codes, patients and weights."""
        joined: list[Any] = [None if each[0] is None else np.concatenate(each) for each in zip(*self.sampled, strict=True)]
        y, score, f, codes, units, w = joined
        return y, score, f, np.append(keep, -1)[codes], grouped(units, self.patients)[1], w


def measured_in_parts(stored: Source, asked: Asked, progress: Progress | None, *, scored: bool = True) -> Measured:
    """Every estimate of an audit, from sums over the parts; `scored` as in `measured`."""
    shape = tuple(len(a.levels) for a in stored.attributes)
    sizes = [*shape, *([math.prod(shape)] if len(shape) > 1 else []), 1]  # each attribute, their intersection, all rows
    if math.prod(shape) * 2 > MOST_BINS // 16:
        raise BadInput(
            f"the group columns have {math.prod(shape):,} intersections, too many for a table of this size. Audit them one by one."
        )
    tallies = [_Tally(size) for size in sizes]
    steps, done, patients, rows = 2 * stored.count, 0, 0, 0
    varied = np.zeros(len(stored.attributes), np.int64)
    weighted = named = False
    for part in stored.parts():
        units, f, bins = units_of(part.patients, len(part)), asked.decision.decide(part), score_bins(part.score).astype(np.int64)
        for tally, codes in zip(tallies, _codes(part, shape), strict=True):
            tally.add(f, part.y, part.score, bins, codes, units, part.weight)
        patients, rows = patients + int(units.max(initial=-1)) + 1, rows + len(part)
        varied += [patients_varying(a, part.patients) for a in part.attributes]
        weighted, named = part.weight is not None, part.patients is not None
        done = _told(progress, done, steps)
    ranked = [Binned.of(tally.counts, tally.rows) for tally in tallies]
    for part in stored.parts():
        units, bins = units_of(part.patients, len(part)), score_bins(part.score).astype(np.int64)
        for tally, own, codes in zip(tallies, ranked, _codes(part, shape), strict=True):
            own.add(part.y, bins // tally.width, codes, units, part.weight)
        done = _told(progress, done, steps)
    attributes, kept = _attributes(stored, tallies, shape)
    return _Whole(stored, asked, tallies, ranked, attributes, kept, patients if named else None, rows, varied, weighted, scored).measured()


def _told(progress: Progress | None, done: int, steps: int) -> int:
    if progress:
        progress(done + 1, steps)
    return done + 1


def _codes(part: Scores, shape: tuple[int, ...]) -> list[IntArray]:
    """The groups of the rows: of each attribute, of their intersection (over all combinations), and one for all."""
    codes = [a.codes for a in part.attributes]
    crossed = []
    if len(codes) > 1:
        missing = np.any([each < 0 for each in codes], axis=0)
        flat = np.ravel_multi_index(tuple(np.where(missing, 0, each) for each in codes), shape)
        crossed = [np.where(missing, -1, flat)]
    return [*codes, *crossed, np.zeros(len(part), np.int64)]


def _attributes(stored: Source, tallies: Sequence[_Tally], shape: tuple[int, ...]) -> tuple[list[Attribute], list[IntArray]]:
    """Each attribute and their intersection without rows, and the codes in the tallies of the groups that there are."""
    kept = [np.arange(size) for size in shape]
    attributes = list(stored.attributes)
    if len(shape) > 1:
        sums = tallies[len(shape)].sums
        assert sums is not None
        present = np.flatnonzero((sums.total[:, :2].sum(1) > 0) | (np.arange(len(sums.total)) == 0))
        places = np.unravel_index(present, shape)
        attributes.append(Attribute.crossed([replace(a, codes=at) for a, at in zip(stored.attributes, places, strict=True)]))
        kept.append(present)
    return attributes, kept


@dataclass(eq=False)
class _Whole:
    """All sums of a table, from which its audit follows."""

    stored: Source
    asked: Asked
    tallies: Sequence[_Tally]
    ranked: Sequence[Binned]
    attributes: Sequence[Attribute]
    kept: Sequence[IntArray]
    patients: int | None
    rows: int
    varied: IntArray
    weighted: bool
    scored: bool

    def measured(self) -> Measured:
        """Every estimate of the audit."""
        asked, settings = self.asked, self.asked.settings
        sums = [_subset(tally, kept) for tally, kept in zip(self.tallies, self.kept, strict=False)]
        cells = [
            Cells(a.levels, *(np.vstack([m.total[:, at], np.zeros((1, 2))]) for at in (slice(0, 2), slice(2, 4))))
            for a, m in zip(self.attributes, sums, strict=True)
        ]
        if self.scored:
            asked.require(cells[: len(self.stored.attributes)], self.stored.name)
        unit = "rows" if self.patients is None else "patients"
        group_frames, gap_frames, samples, curves = [], [], [], []
        everyone = self._sampled(len(self.tallies) - 1, np.zeros(1, np.int64), Attribute(EVERYONE, (EVERYONE,), np.zeros(0, np.int64)))
        of_all, used = self._of_scores(len(self.tallies) - 1, np.zeros(1, np.int64), everyone)
        curves.append(of_all.curves)
        for k, (attribute, moments) in enumerate(zip(self.attributes, sums, strict=True)):
            sample = self._sampled(k, self.kept[k], attribute)
            samples.append(sample)
            groups, gaps = frames_of(attribute, moments, self._aurocs(k, moments, sample), asked.gaps, settings, unit)
            if self.scored:
                own, own_used = self._of_scores(k, self.kept[k], sample)
                curves.append(own.curves)
                groups = with_score_measures(groups, own, settings.min_patients, unit, own_used)
            group_frames.append(groups)
            gap_frames.append(gaps)

        def tested(comparisons: int) -> list[FloatArray]:
            return [p for moments, sample in zip(sums, samples, strict=True) for p in self._p_values(moments, sample, comparisons)]

        estimates = self._performance()
        if self.scored:
            estimates |= overall_measures(of_all, used, self.rows, asked)
        rows = self.rows
        known = [float(m.rows_of("selection_rate").sum()) for m in sums]
        audit = Audit(
            estimates=estimates,
            groups=pd.concat(group_frames),
            gaps=pd.concat(gap_frames, ignore_index=True),
            rule=asked.decision,
            missing={a.name: 1 - n / rows for a, n in zip(self.attributes, known, strict=True)},
            references={a.name: a.reference for a in self.attributes},
            assumed=tuple(a.name for a in self.stored.attributes if not a.named),
            rows=rows,
            patients=self.patients,
            name=self.stored.name,
            settings=settings,
            varying=self._varying(),
            curves=pd.concat(curves, ignore_index=True) if self.scored else pd.DataFrame(columns=CURVES),
            weighted=self.weighted,
            shrink=asked.shrink,
            sums={a.name: own for a, own in zip(self.attributes, sums, strict=True)},
        )
        return Measured(audit, sums, asked.gaps, tested)

    def _sampled(self, k: int, kept: IntArray, attribute: Attribute) -> tuple[Scores, Attribute, IntArray, FloatArray]:
        """The sample of one attribute: its scores, groups, patients and decisions."""
        tally = self.tallies[k]
        place = np.full(tally.groups, -1)
        place[kept] = np.arange(len(kept))
        y, score, f, codes, units, w = tally.sample(place)
        own = replace(attribute, codes=codes)
        patients: Any = None if self.patients is None else units
        return Scores(y, score, (own,), patients, np.arange(len(y)).astype(object), self.stored.name, w), own, units, f

    def _of_scores(self, k: int, kept: IntArray, sample: tuple[Scores, Attribute, IntArray, FloatArray]) -> tuple[ScoreMeasures, IntArray]:
        """The measures of the scores of each group of one attribute, and how many of its rows they come from."""
        settings, tally = self.asked.settings, self.tallies[k]
        assert tally.sums is not None
        assert tally.losses is not None
        found, used = estimate_scores(*sample[:3], settings), tally.kept[kept]
        rows = tally.sums.rows_of("selection_rate")[kept]
        return of_all_rows(found, tally.losses.taken(kept), settings.level, used < rows, settings.min_patients), used

    def _aurocs(self, k: int, moments: Moments, sample: tuple[Scores, Attribute, IntArray, FloatArray]) -> Limits:
        """The AUROC of each group: exact where all its rows are in the sample, from binned scores elsewhere."""
        level, kept = self.asked.settings.level, self.kept[k]
        scores, attribute, units, _ = sample
        exact = aurocs(scores, attribute, units, level)
        rows = {name: moments.rows_of(name) for name in ("tpr", "fpr", "selection_rate")}
        whole = self.tallies[k].kept[kept] == rows["selection_rate"]
        ranked = self.ranked[k]
        value, clustered, alone = (each["auroc"][kept] for each in (ranked.value, ranked.variance, ranked.unclustered))
        everyone = moments.patients("selection_rate")
        effect = np.maximum(np.nan_to_num(ratio(clustered * ratio(everyone, everyone - 1), alone), nan=1.0), 1.0)
        positives, negatives = (fewer_clusters(rows[name] / effect, moments.degrees(name), level) for name in ("tpr", "fpr"))
        low, high = auroc_interval(value, positives, negatives, level)
        patients = np.minimum(moments.patients("tpr"), moments.patients("fpr"))
        ends = [np.where(whole, one, other) for one, other in zip((exact.value, exact.low, exact.high), (value, low, high), strict=True)]
        return Limits(ends[0], ends[1], ends[2], patients)

    def _performance(self) -> dict[str, Estimate]:
        """The performance of all rows together."""
        level, sums, ranked = self.asked.settings.level, self.tallies[-1].sums, self.ranked[-1]
        assert sums is not None
        found = {}
        for name in self.asked.performance:
            if name not in ranked.value:
                found[name] = Estimate(*performance_of(name, sums, level))
                continue
            value, variance = (float(each[name][0]) for each in (ranked.value, ranked.variance))
            if name == "auroc":
                effect = max(variance / float(ranked.unclustered[name][0]), 1.0)
                positives, negatives = (float(sums.rows_of(rate)[0]) for rate in ("tpr", "fpr"))
                low, high = auroc_interval(value, positives / effect, negatives / effect, level)
                note = f"from binned scores: off by at most {float(ranked.bound[0]):.0e}"
            else:
                positives = float(sums.rows_of("tpr")[0])
                low, high = wilson(value, min(positives, value * (1 - value) / variance), level)
                note = "from binned scores"
            found[name] = Estimate(value, float(low), float(high), note)
        return found

    def _p_values(self, moments: Moments, sample: tuple[Scores, Attribute, IntArray, FloatArray], comparisons: int) -> list[FloatArray]:
        """The p-value of each gap (groups - 1,), for each measure: from all rows, or from the sample where a cell is small."""
        scores, attribute, _, f = sample
        found = [_large_p(moments, measure, self.weighted) for measure in self.asked.gaps]
        if any(np.isnan(p).any() for p in found):
            drawn = p_values(
                *(f, scores.y, attribute.codes, attribute.levels, scores.patients, self.asked.gaps),
                weight=scores.weight,
                comparisons=comparisons,
                seed=self.asked.settings.seed,
            )
            found = [np.where(np.isnan(p), drawn[measure], p) for measure, p in zip(self.asked.gaps, found, strict=True)]
        return found

    def _varying(self) -> tuple[Varying, ...]:
        pairs = [(a, int(n) if a.conflicts == "row" else a.varied) for a, n in zip(self.stored.attributes, self.varied, strict=True)]
        return tuple(Varying(a.name, n, a.conflicts) for a, n in pairs if n)


def _subset(tally: _Tally, kept: IntArray) -> Moments:
    sums = tally.sums
    assert sums is not None
    return Moments(sums.ratios, sums.total[kept], sums.second[kept], sums.rows[kept], sums.units[kept])


def _large_p(moments: Moments, measure: str, weighted: bool) -> FloatArray:
    """The p-value of the gap of every group but the reference, as `p_values` finds it in large cells; NaN where a cell is not large."""
    signed = coefficients(measure)
    names = tuple(signed)
    top, bottom = (np.array([moments.ratios[name][side] for name in names], dtype=np.float64) for side in (0, 1))
    signs = np.array(list(signed.values()))
    value, patients, held = (np.stack([of(name) for name in names], axis=-1) for of in (moments.value, moments.patients, moments.rows_of))
    with np.errstate(invalid="ignore"):
        large = (patients >= MANY) & (np.minimum(value, 1 - value) * patients >= MANY_EVENTS)
    many = np.logical_and.reduce(large, axis=-1)
    single = not weighted and len(names) == 1 and bool((held == patients).all())
    found = np.full(len(moments.total) - 1, np.nan)
    for k in range(1, len(moments.total)):
        if not (many[k] and many[0]):
            continue
        sides = moments.total[[k, 0]]  # (2, columns)
        rows, hits = sides @ bottom.T, sides @ top.T  # (2, rates)
        if single:
            counts = [round(float(x)) for x in (hits[0, 0], rows[0, 0], hits[1, 0], rows[1, 0])]
            found[k - 1] = hypergeometric_p(*counts)
            continue
        residual = top - (hits.sum(0) / rows.sum(0))[:, None] * bottom  # from the rates of both groups together
        share = signs / rows
        gap = float(share[0] @ (residual @ sides[0]) - share[1] @ (residual @ sides[1]))
        variance = sum(float(share[j] @ (residual @ moments.second[side] @ residual.T) @ share[j]) for j, side in ((0, k), (1, 0)))
        found[k - 1] = math.erfc(abs(gap) / math.sqrt(variance) / math.sqrt(2))
    return found


def audit_scans(
    scans: Mapping[str, Scan],
    *,
    valid: Mapping[str, Scores] | None = None,
    progress: Callable[[str], Progress] | None = None,
    **options: Unpack[AuditOptions],
) -> Audits:
    """The audits of the labels of one table on disk, which is read once; the keywords are those of `audit_scores`."""
    asked = {label: Asked.of(options).decided((valid or {}).get(label)) for label in scans}
    wanted, labels = next(iter(asked.values())).no_finding, list(scans)
    with read_labels(scans) as stored:
        each = {label: _measured(own, asked[label], progress and progress(label)) for label, own in stored.items()}
        if wanted == DERIVED:
            if len(labels) < 2:
                raise BadInput(f"no finding is derived from several labels; got {labels[0]}. Name the label that means it instead.")
            rules = {label: own.decision for label, own in asked.items()}
            each[NO_FINDING] = _measured(_NoFinding(stored[labels[0]], rules), no_finding_asked(asked), None, scored=False)
        return audits_of(each, "labels", stored[labels[0]].name, wanted)


@dataclass(frozen=True, eq=False)
class _NoFinding:
    """Derived decisions on "no finding", part by part, on the rows in which every label is known."""

    stored: Stored
    rules: Mapping[str, Rule]
    name: str = NO_FINDING

    @property
    def attributes(self) -> tuple[Attribute, ...]:
        return self.stored.attributes

    @property
    def whole(self) -> bool:
        return self.stored.whole

    @property
    def count(self) -> int:
        return self.stored.count

    def parts(self) -> Iterator[Scores]:
        for each in self.stored.parts_of_all():
            yield none_of_rows(dict(zip(self.rules, each, strict=True)), self.rules)


def _measured(source: Source, asked: Asked, progress: Progress | None, *, scored: bool = True) -> Measured:
    """Every estimate of the audit of one label: from its rows where they are in memory, otherwise from sums over the parts."""
    if source.whole:
        return measured(next(source.parts()), asked, progress, scored=scored)
    return measured_in_parts(source, asked, progress, scored=scored)
