"""Audits of tables that are not in memory: what is added up in an engine, in plain SQL, and estimated from the sums.

Several labels of one table are read together and estimated one after another; they are one family of comparisons. A table of up to
`data.scans.ROWS_HELD` rows is audited in memory, exactly. Of a larger one:

- rates, gaps, their intervals and tests, accuracy, balanced accuracy and F1 follow from sums by patient and their second moments: the
  numbers are the same as in memory
- Brier score and calibration in the large are means over rows, so they follow from such sums too
- AUROC and average precision come from counts of scores in narrow bins. Scores in the same bin count as ties, so the error of AUROC is at
  most half the sum over bins of (share of positives) * (share of negatives). This bound, about 1e-5, is reported
- calibration intercept, slope and error, operating points and decision curves, and the test of a group with few patients, use a random
  sample of whole patients of at least `SAMPLED_ROWS` rows of each group, or all rows of a smaller group. Their intervals are those of that
  sample, and the audit states its size (`sampled`).

The relations in the engine, for one label: `kept`, its rows; `cells`, the sums of each patient in each combination of groups; `ranked`, the
counts and influences by group and bin of the score; `placed`, the influences of each patient.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations_with_replacement
from typing import Any

import numpy as np
import pandas as pd

from equipoise.data import Attribute, Engine, FloatArray, IntArray, Scores, StoredRows
from equipoise.measures.cells import Cells, ratio
from equipoise.measures.disclosure import Counted, GroupCounts
from equipoise.measures.intervals import Estimate, Limits, auroc_design_effect, auroc_interval, fewer_clusters, wilson
from equipoise.measures.moments import DECISION_RATIOS, LEAST_REST, POWERS, Moments
from equipoise.measures.score_measures import LOSS_RATIOS, SAMPLED_ROWS, aurocs

BINS_PER_OCTAVE = 8192  # bins of a score, or of 1 - score if that is smaller, between a number and its double
SMALLEST = 1e-8  # scores closer to 0 or 1 share a bin, except those that are exactly 0 or 1
PART_ROWS = 2**20  # that are summed by patient at once
OCTAVES, FEWEST_BINS = 27, 16  # octaves from SMALLEST to 1/2, and the fewest bins of one
MOST_BINS = 2**22  # of all groups together; with many groups, bins are wider
SUMMED = ("n0", "n1", "f0", "f1", "e2", "e1")  # by patient: rows and positive decisions by label, squared errors and errors
WEIGHTED = ("v0", "v1", "h0", "h1")  # the first four with weights


def score_bin(score: str, logits: bool, per_octave: float) -> str:
    """The bin of a score (or a logit) in SQL, ascending. Bins are narrower towards 0 and 1, where scores of rare findings lie close."""
    if logits:  # the logarithm of the smaller of the score and its complement, also where either is 0 in floating point
        log = f"-(abs({score}) + ln(1 + exp(-case when abs({score}) < 700 then abs({score}) else 700 end)))"
        upper, most = f"{score} > 0", np.log(0.5)
    else:
        upper, most = f"{score} > 0.5", np.log(0.5 + SMALLEST)
        log = f"ln({SMALLEST} + case when {upper} then 1 - {score} else {score} end)"
    steps = f"{float(per_octave / np.log(2))!r} * ({log} - ({float(most + 1e-9)!r}))"  # below 0
    bins = f"cast(floor(case when {upper} then -({steps}) else {steps} end) as bigint)"
    return bins if logits else f"case {score} when 0 then -{2**30} when 1 then {2**30} else {bins} end"


@dataclass(eq=False)
class Sums:
    """The sums of one label of stored rows. `rows` are its rows in SQL, with the decision on each."""

    stored: StoredRows
    rows: str
    least: int = 1  # patients of a group that may be known outside of a database
    counts: GroupCounts = field(init=False)

    def __post_init__(self) -> None:
        w, error = "w * " if self.stored.weighted else "", "(score - y)"
        columns = ["1 - y", "y", "(1 - y) * f", "y * f", f"{w}{error} * {error}", f"{w}{error}"]
        columns += [f"{w}{column if k else '(1 - y)'}" for k, column in enumerate(columns[:4])] if w else []
        self.engine.view("kept", self.rows)
        if self.stored.has_patients:
            kinds = ["bigint"] * 4 + ["double precision"] * (len(columns) - 4)
            summed = ", ".join(f"cast(sum({c}) as {kind}) as {name}" for name, c, kind in zip(self.summed, columns, kinds, strict=True))
            by = f"unit, {', '.join(self.names)}"
            self.engine.keep("cells", f"select {by}, {summed} from kept where {{part}} group by {by}", self._parts)
        else:
            listed = ", ".join(f"{each} as {name}" for name, each in zip(self.summed, columns, strict=True))
            self.engine.view("cells", f"select {', '.join(self.names)}, {listed} from kept")

    @property
    def names(self) -> list[str]:
        """The columns with the codes of the groups."""
        return [f"code{k}" for k in range(len(self.stored.attributes))]

    @property
    def summed(self) -> tuple[str, ...]:
        """The columns of `cells` that are summed by patient."""
        return (*SUMMED, *(WEIGHTED if self.stored.weighted else ()))

    @property
    def _parts(self) -> list[str]:
        """The parts in which rows are summed by patient, so that the patients of one stay in memory."""
        return self.engine.parts(max(1, self.stored.rows_stored // PART_ROWS) if self.stored.has_patients else 1)

    @property
    def engine(self) -> Engine:
        """Where the rows are."""
        return self.stored.engine

    @cached_property
    def whole(self) -> tuple[int, int | None, list[int], bool]:
        """The rows, the patients, the patients with several groups of each attribute, and whether rows have weights."""
        places, patients = range(len(self.stored.attributes)), None
        varied = [0 for _ in places]
        rows = self.engine.query("select sum(n0 + n1) as n from cells")["n"][0]
        rows = 0 if np.isnan(rows) else int(rows)
        if self.stored.has_patients:
            ends = [f"{end}(case when code{k} >= 0 then code{k} end) as {end}{k}" for k in places for end in ("min", "max")]
            of_patients = f"select unit, {', '.join(ends)} from cells group by unit"
            several = ", ".join(f"sum(case when min{k} < max{k} then 1 else 0 end) as v{k}" for k in places)
            found = self.engine.query(f"select count(*) as n, {several} from ({of_patients}) as each")
            patients, varied = int(found["n"][0]), [int(np.nan_to_num(found[f"v{k}"][0])) for k in places]
        return rows, patients, varied, self.stored.weighted

    @cached_property
    def apart(self) -> bool:
        """Whether every patient has one combination of groups, so that a row of `cells` is a patient."""
        return not self.stored.has_patients or int(self.engine.query("select count(*) as n from cells")["n"][0]) == self.whole[1]

    @property
    def crossed(self) -> str:
        """The position of a row's combination of groups among all combinations in SQL; -1 if a group is missing."""
        flat = "code0"
        for k, attribute in enumerate(self.stored.attributes[1:], 1):
            flat = f"({flat}) * {len(attribute.levels)} + code{k}"
        return f"case when {' or '.join(f'code{k} < 0' for k in range(len(self.stored.attributes)))} then -1 else {flat} end"

    def combinations(self) -> IntArray:
        """The combinations of groups that have rows."""
        found = self.engine.query(f"select distinct {self.crossed} as cell from cells")["cell"].astype(np.int64)
        return found[found >= 0]

    def by_group(self, counts: GroupCounts) -> Counted:
        """The rows and patients of each group, as `disclosure.Countable`."""
        rows, patients, outside = [], [], []
        for k, attribute in enumerate(counts.attributes):
            code, lost = self._code(k), f"{self.crossed} < 0"
            unit = "" if self.apart else ", unit"
            columns = f"{code} as code{unit}, n0 + n1 as n, case when {lost} then 1 else 0 end as lost"
            inner = f"select {columns} from cells where {self._shown(counts)}"
            if unit:
                inner = f"select code, unit, sum(n) as n, max(lost) as lost from ({inner}) as each group by code, unit"
            sums = "sum(n) as n, count(*) as p, sum(lost) as lost"
            if self.engine.remote:  # fewer patients than may be known count as one, with one row
                enough = f"case when count(*) < {self.least} then 1 else"
                lost = f"case when sum(lost) > 0 and sum(lost) < {self.least} then 1 else sum(lost) end"
                sums = f"{enough} sum(n) end as n, {enough} count(*) end as p, {lost} as lost"
            found = self.engine.query(f"select code, {sums} from ({inner}) as each group by code")
            place = self._place(counts, k, found["code"])
            table = np.zeros((3, len(attribute.levels) + 1), np.int64)
            table[:, place] = np.array([found["n"], found["p"], found["lost"]], dtype=np.float64)
            rows.append(table[0, :-1])
            if self.engine.remote and self._small_are_enough(found, inner, bool(unit)):
                table[1, -1] = max(table[1, -1], self.least)
            patients.append(table[1])
            outside.append(table[2, :-1])
        return Counted(rows, patients, outside)

    def _small_are_enough(self, found: dict[str, Any], inner: str, has_unit: bool) -> bool:
        """Whether the groups with few patients, and the rows without a group, have enough patients together."""
        small = [str(int(code)) for code, p in zip(found["code"], found["p"], strict=True) if p < self.least or code < 0]
        if not small:
            return False
        together = f"select {'distinct unit' if has_unit else 'code'} from ({inner}) as each where code in ({', '.join(small)})"
        enough = f"case when count(*) >= {self.least} then 1 else 0 end as enough"
        return bool(self.engine.query(f"select {enough} from ({together}) as each")["enough"][0])

    def _code(self, k: int) -> str:
        """The group of an attribute, or of the intersection, in SQL."""
        return f"code{k}" if k < len(self.stored.attributes) else self.crossed

    def _place(self, counts: GroupCounts, k: int, codes: Any) -> IntArray:
        """The positions of codes among the groups; the last position for rows without one."""
        found = codes.astype(np.int64)
        if k >= len(self.stored.attributes):
            found = np.where(found < 0, -1, np.searchsorted(counts.cells, found))
        return np.where(found < 0, len(counts.attributes[k].levels), found).astype(np.int64)

    def _shown(self, counts: GroupCounts) -> str:
        """The rows that are in any sum in SQL."""
        out = []
        for k, left_out in enumerate(counts.left_out):
            codes = [*np.flatnonzero(left_out[:-1]).tolist(), *([-1] if left_out[-1] else [])]
            out += [f"code{k} not in ({', '.join(map(str, codes))})"] if codes else []
        return " and ".join(out) or "1 = 1"

    def _of_group(self, k: int | None) -> tuple[str, str]:
        """The group of an attribute as `g` in SQL, and the rows that have one that is shown; of all rows together, the group is 0."""
        if k is None:
            return "(0 + 0)", self._shown(self.counts)  # a plain 0 in GROUP BY would be a position
        code, withheld = self._code(k), np.flatnonzero(self.counts.withheld[k])
        codes = (withheld if k < len(self.stored.attributes) else self.counts.cells[withheld]).tolist()
        hidden = f" and {code} not in ({', '.join(map(str, codes))})" if codes else ""
        return code, f"{self._shown(self.counts)} and {code} >= 0{hidden}"

    def _grouped(self, k: int | None, groups: int, found: dict[str, Any], names: Sequence[str]) -> FloatArray:
        """Columns of a result by group (groups, names); 0 without rows."""
        table = np.zeros((groups, len(names)))
        place = found["g"].astype(np.int64) if k is None else self._place(self.counts, k, found["g"])
        table[place] = np.nan_to_num(np.array([found[name] for name in names], dtype=np.float64).T)
        return table

    def _patients(self, k: int | None) -> str:
        """The sums of each patient in each group in SQL."""
        g, shown = self._of_group(k)
        if self.apart:
            return f"select {g} as g, {', '.join(self.summed)} from cells where {shown}"
        summed = ", ".join(f"sum({name}) as {name}" for name in self.summed)
        return f"select {g} as g, unit, {summed} from cells where {shown} group by {g}, unit"

    def moments(self, k: int | None, groups: int) -> tuple[Moments, Moments]:
        """The moments of the decisions and of the errors of the scores, by the groups of an attribute; k is None for all rows together."""
        plain = SUMMED[:4]
        if self.stored.weighted:
            weighted, counted = WEIGHTED, ", ".join([*plain, *WEIGHTED])
            alike = f"select g, 1 as m, {counted}, e2, e1, e2 * e2 as e22, e2 * e1 as e21, e1 * e1 as e11 from p"
        else:  # few patients differ in their numbers of rows and decisions
            weighted, counted = plain, ", ".join(plain)
            errors = "sum(e2) as e2, sum(e1) as e1, sum(e2 * e2) as e22, sum(e2 * e1) as e21, sum(e1 * e1) as e11"
            alike = f"select g, count(*) as m, {counted}, {errors} from p group by g, {counted}"
        double = ", ".join(f"cast({name} as double precision) as {name}" for name in counted.split(", "))
        sums = [f"m * {name}" for name in weighted]
        pairs = list(combinations_with_replacement(range(4), 2))
        sums += [f"m * {weighted[a]} * {weighted[b]}" for a, b in pairs]
        for each in DECISION_RATIOS.values():
            a, b, n = _linear(each.top, weighted), _linear(each.bottom, weighted), _linear(each.bottom, plain)
            sums += [f"m * {n}", f"m * case when {n} < 1 then {n} else 1 end"]
            sums += [f"m * {' * '.join([a] * i + [b] * j)}" for i, j in POWERS]
        n, v = _linear((1, 1), plain[:2]), _linear((1, 1), weighted[:2])
        sums += [f"m * {v}", "e2", "e1", f"m * {v} * {v}", f"{v} * e2", f"{v} * e1", "e22", "e21", "e11", f"m * {n}", "m"]
        names = [f"x{k}" for k in range(len(sums))]
        listed = ", ".join(f"sum({each}) as {name}" for name, each in zip(names, sums, strict=True))
        parts = f"p as ({self._patients(k)}), q as ({alike}), r as (select g, m, e2, e1, e22, e21, e11, {double} from q)"
        found = self.engine.query(f"with {parts} select g, {listed} from r group by g")
        table = self._grouped(k, groups, found, names)
        total, second, ratios = table[:, :4], _symmetric(table[:, 4:14], 4), len(DECISION_RATIOS)
        of_ratios = table[:, 14:-11].reshape(groups, ratios, -1)
        shared = self._shared_with_reference(k, groups)
        decisions = Moments(DECISION_RATIOS, total, second, of_ratios[..., 0], of_ratios[..., 1], of_ratios[..., 2:], shared)
        rest, none = table[:, -11:], np.zeros((groups, len(LOSS_RATIOS), len(POWERS)))
        rows, units = (np.repeat(rest[:, [column]], len(LOSS_RATIOS), axis=1) for column in (9, 10))
        losses = Moments(LOSS_RATIOS, rest[:, :3], _symmetric(rest[:, 3:9], 3), rows, units, none, np.zeros((groups, 3, 3)))
        return decisions, losses

    def _shared_with_reference(self, k: int | None, groups: int) -> FloatArray:
        """The products of the sums of patients in a group and in the reference, summed (groups, 4, 4); see `Moments.shared`."""
        products = np.zeros((groups, 4, 4))
        if self.apart or k is None:
            return products
        names, reference = (
            WEIGHTED if self.stored.weighted else SUMMED[:4],
            0 if k < len(self.stored.attributes) else int(self.counts.cells[0]),
        )
        pairs = [(a, b) for a in range(4) for b in range(4)]
        listed = ", ".join(f"sum(cast(own.{names[a]} as double precision) * other.{names[b]}) as x{a}{b}" for a, b in pairs)
        joined = f"p as own join p as other on own.unit = other.unit where other.g = {reference} and own.g <> {reference}"
        found = self.engine.query(f"with p as ({self._patients(k)}) select own.g as g, {listed} from {joined} group by own.g")
        return self._grouped(k, groups, found, [f"x{a}{b}" for a, b in pairs]).reshape(groups, 4, 4)

    def rank(self, groups: Sequence[int]) -> "list[Ranked]":
        """AUROC of the groups of each attribute, and with average precision that of all rows together (last), with their variances."""
        engine, w = self.engine, "w" if self.stored.weighted else "1"
        places: list[int | None] = [*range(len(groups) - 1), None]
        per_octave = float(BINS_PER_OCTAVE)
        while (
            2 * int(np.prod([len(a.levels) for a in self.stored.attributes])) * per_octave * OCTAVES > MOST_BINS
            and per_octave > FEWEST_BINS
        ):
            per_octave /= 2
        bins = "ranked" if engine.remote else score_bin("ranked", self.stored.logits, per_octave)
        engine.view("binned", f"select kept.*, {bins} as bin from kept")
        by, weights = f"{', '.join(self.names)}, bin", {"": "1", "_w": "w"} if self.stored.weighted else {"": "1"}
        sums = [
            f"sum(case when y = {y} then {w} else 0 end) as {name}{end}" for end, w in weights.items() for y, name in ((0, "q"), (1, "p"))
        ]
        engine.keep("histogram", f"select {by}, {', '.join(sums)} from binned group by {by}")
        found = []
        for place, (k, count) in enumerate(zip(places, groups, strict=True)):
            values = []
            for end in weights:  # the last is kept for the variances between patients
                self._rank(place, k, end)
                last = ", sum(p * j) / max(np) as ap" if k is None else ""
                independent = "sum(q * i0 * i0 + p * i1 * i1) as unclustered"
                listed = f"max(area) as area, sum(p * q) / (2 * max(np) * max(nq)) as bound, {independent}{last}"
                values.append(engine.query(f"select g, {listed} from ranked{place} group by g"))
            names = ["area", "bound", *(["ap"] if k is None else [])]
            table = np.full((count, 3), np.nan)
            at = values[-1]["g"].astype(np.int64) if k is None else self._place(self.counts, k, values[-1]["g"])
            table[at, : len(names)] = np.array([values[-1][name] for name in names], dtype=np.float64).T
            unclustered = self._grouped(k, count, values[0], ["unclustered"])[:, 0]
            bound = table[:, 1] * (not engine.remote)  # where scores are not binned
            found.append(Ranked(table[:, 0], bound, unclustered, float(table[0, 2])))
            found[-1].variance = np.zeros(count)
        placed = self._placed(places, w)
        for part in self._parts:
            engine.keep("placed", placed, [part])
            for place, k in enumerate(places):
                result = engine.query(self._variance(place, k))
                found[place].variance += self._grouped(k, groups[place], result, ["v"])[:, 0]
                found[place].precision_variance += float(result["ap"].sum()) if k is None else 0.0
        engine.drop("placed", "histogram", "influences", *(f"ranked{place}" for place in range(len(places))))
        return found

    def _variance(self, place: int, k: int | None) -> str:
        """The sums of the squared influences of patients in SQL: v on AUROC and, of all rows together, ap on average precision."""
        g, shown = self._of_group(k)
        columns = {f"{side}{y}_{place}": f"{side}{y}" for side in ("aj" if k is None else "a") for y in (0, 1)} | {"v0": "v0", "v1": "v1"}
        if self.apart:
            inner = f"select {g} as g, {', '.join(f'{c} as {n}' for c, n in columns.items())} from placed where {shown}"
        else:
            listed = ", ".join(f"sum({c}) as {n}" for c, n in columns.items())
            inner = f"select {g} as g, unit, {listed} from placed where {shown} group by {g}, unit"
        raised = [
            f"1.0 / case when 1 - v{y} / {n} < {LEAST_REST} then {LEAST_REST} else 1 - v{y} / {n} end" for y, n in ((0, "nq"), (1, "np"))
        ]
        squares = [f"({a}0 * ({raised[0]}) + {a}1 * ({raised[1]}))" for a in "aj"]
        totals = f"select g, max(nq) as nq, max(np) as np from ranked{place} group by g"
        more = f", sum({squares[1]} * {squares[1]}) as ap" if k is None else ""
        listed = f"p.g as g, sum({squares[0]} * {squares[0]}) as v{more}"
        return f"select {listed} from ({inner}) as p join ({totals}) as t on p.g = t.g where nq > 0 and np > 0 group by p.g"

    def _rank(self, place: int, k: int | None, end: str) -> None:
        """Keeps, by group and bin, the weights q and p of the negatives and positives and the influences of a row of each on AUROC.

        They are the placements of DeLong (see `Ranks.influence`). Of all rows together, j are those on average precision.
        """
        g, shown = self._of_group(k)
        window = "over (partition by g order by bin rows between unbounded preceding and current row)"
        sums = ", ".join(f"cast(sum({name}{end}) as double precision) as {name}" for name in "qp")
        parts = f"d as (select {g} as g, bin, {sums} from histogram where {shown} group by {g}, bin)"
        whole = "sum(q) over (partition by g) as nq, sum(p) over (partition by g) as np"
        parts += f", c as (select g, bin, q, p, sum(q) {window} as cq, sum(p) {window} as cp, {whole} from d)"
        parts += ", a as (select g, sum(p * (cq - q / 2)) / (max(np) * max(nq)) as area from c where np > 0 and nq > 0 group by g)"
        above, below = "(np - cp + p / 2) / np - area", "(cq - q / 2) / nq - area"
        columns, source = f"c.g as g, bin, q, p, nq, np, area, ({above}) / nq as i0, ({below}) / np as i1", "c join a on c.g = a.g"
        if k is None:
            parts += ", e as (select c.*, np - cp + p as hits, nq - cq + q as alarms from c)"
            decided = "((hits + alarms) * (hits + alarms))"
            parts += (
                f", r as (select e.*, sum(p * alarms / {decided}) {window} as raised, sum(p * hits / {decided}) {window} as lowered from e)"
            )
            parts += ", t as (select g, sum(p * hits / (hits + alarms)) / max(np) as ap from r where np > 0 and nq > 0 group by g)"
            columns += ", hits / (hits + alarms) as j, -lowered / np as j0, (hits / (hits + alarms) - ap) / np + raised / np as j1"
            source = "r as c join a on c.g = a.g join t on c.g = t.g"
        self.engine.keep(f"ranked{place}", f"with {parts} select {columns} from {source}")

    def _placed(self, places: Sequence[int | None], w: str) -> str:
        """The sums of the influences, and of the weights, of each patient's rows, by label, in SQL; on average precision they are j."""
        joins, influences = [], []
        for place, k in enumerate(places):
            joins.append(f"left join ranked{place} on {self._of_group(k)[0]} = ranked{place}.g and histogram.bin = ranked{place}.bin")
            influences += [(f"{side}{y}_{place}", f"ranked{place}.{side}{y}") for side in ("ij" if k is None else "i") for y in (0, 1)]
        by = [f"histogram.{name} as {name}" for name in (*self.names, "bin")]
        listed = ", ".join([*by, *(f"{sql} as {name}" for name, sql in influences)])
        self.engine.keep("influences", f"select {listed} from histogram {' '.join(joins)}")
        names, label = [f"binned.{name}" for name in self.names], [f"{w} * (1 - y)", f"{w} * y"]
        same = " and ".join(f"binned.{name} = influences.{name}" for name in (*self.names, "bin"))
        columns = [(name.replace("i", "a"), f"{label[int(name[1])]} * {name}") for name, _ in influences]
        alone = not self.stored.has_patients and not self.stored.weighted  # rows that have equal shares
        columns += [(f"v{y}", "0" if alone else each) for y, each in enumerate(label)]
        source = f"binned join influences on {same}"
        if self.stored.has_patients:
            by_patient, summed = f"unit, {', '.join(names)}", ", ".join(f"sum({sql}) as {name}" for name, sql in columns)
            return f"select {by_patient}, {summed} from {source} where {{part}} group by {by_patient}"
        return f"select {', '.join([*names, *(f'{sql} as {name}' for name, sql in columns)])} from {source}"

    def sample(self, k: int | None, attribute: Attribute, rows: FloatArray) -> "tuple[Scores, IntArray, FloatArray]":
        """A random sample of whole patients of each group with more than `SAMPLED_ROWS` rows, with its patients and decisions."""
        if self.engine.remote:  # no row leaves a database
            none = np.zeros(0, np.int64)
            return (
                Scores(none, none.astype(float), (replace(attribute, codes=none),), None, name=self.stored.name),
                none,
                none.astype(float),
            )
        g, shown = self._of_group(k)
        few = np.flatnonzero((rows > 0) & (rows <= SAMPLED_ROWS))
        many = np.flatnonzero(rows > SAMPLED_ROWS)
        codes = np.arange(len(rows)) if k is None or k < len(self.stored.attributes) else self.counts.cells
        steps = [f"when {g} in ({', '.join(map(str, codes[few]))}) then 1 = 1"] if len(few) else []
        steps += [f"when {g} = {codes[each]} then {self.engine.uniform} < {float(SAMPLED_ROWS / rows[each])!r}" for each in many]
        columns = f"{g} as g, y, score, ranked, f, unit{', w' if self.stored.weighted else ''}"
        chosen = f"case {' '.join(steps)} else 1 = 0 end" if steps else "1 = 0"
        found = self.engine.query(f"select {columns} from kept where {shown} and {chosen}")
        units = pd.factorize(found["unit"])[0].astype(np.int64)
        codes = found["g"].astype(np.int64) if k is None else self._place(self.counts, k, found["g"])
        patients: Any = units if self.stored.has_patients else None  # numbers instead of ids
        logit = found["ranked"] if self.stored.logits else None
        y, weight = found["y"].astype(np.int64), found["w"].astype(np.float64) if self.stored.weighted else None
        attribute = replace(attribute, codes=codes)
        scores = Scores(y, found["score"], (attribute,), patients, name=self.stored.name, weight=weight, logit=logit)
        return scores, units, found["f"].astype(np.float64)


def _linear(coefficients: Sequence[float], names: Sequence[str]) -> str:
    """A sum of columns with these coefficients in SQL."""
    terms = [
        f"{'-' if c < 0 else ''}{'' if abs(c) == 1 else f'{abs(c)} * '}{name}" for c, name in zip(coefficients, names, strict=True) if c
    ]
    return f"({' + '.join(terms)})" if terms else "(0)"


def _symmetric(pairs: FloatArray, width: int) -> FloatArray:
    """Symmetric matrices (groups, width, width) from their upper triangles (groups, pairs)."""
    found = np.zeros((len(pairs), width, width))
    for column, (a, b) in enumerate(combinations_with_replacement(range(width), 2)):
        found[:, a, b] = found[:, b, a] = pairs[:, column]
    return found


@dataclass(eq=False)
class Ranked:
    """AUROC of each group from binned scores, with average precision if the group is all rows together."""

    auroc: FloatArray
    bound: FloatArray  # by how much it may be off
    unclustered: FloatArray  # its variance for independent rows, without sample weights
    average_precision: float
    variance: FloatArray = field(init=False)  # between patients
    precision_variance: float = 0.0


@dataclass(eq=False)
class Tally:
    """What was added up for the groups of one attribute, and a sample of the rows."""

    moments: Moments
    losses: Moments
    ranked: Ranked
    sample: Scores
    units: IntArray  # patients of the sample
    decisions: FloatArray  # on the sample

    @property
    def cells(self) -> Cells:
        """The cell table in the moments; no rows are counted without a group."""
        n, s = (np.vstack([self.moments.total[:, columns], np.zeros((1, 2))]) for columns in (slice(0, 2), slice(2, 4)))
        return Cells(self.sample.attribute.levels, n, s)

    def aurocs(self, level: float) -> Limits:
        """The AUROC of each group: exact if all its rows are in the sample, else from binned scores."""
        moments = self.moments
        codes = self.sample.attribute.codes
        complete = np.bincount(codes[codes >= 0], minlength=len(moments.total)) == moments["selection_rate"].rows
        patients = moments["selection_rate"].patients
        attribute = replace(self.sample.attribute, codes=np.where(np.append(complete, False)[codes], codes, -1))
        exact = aurocs(self.sample, attribute, self.units, level)
        positives, negatives = self._label_sizes(level)
        approximate = Limits(self.ranked.auroc, *auroc_interval(self.ranked.auroc, positives, negatives, level), patients)
        return replace(exact.where(complete, approximate), patients=np.minimum(moments["tpr"].patients, moments["fpr"].patients))

    def ranking(self, name: str, level: float) -> Estimate:
        """AUROC or average precision of all rows together, if these are the sums of all rows."""
        if name == "auroc":
            value, (positives, negatives) = float(self.ranked.auroc[0]), self._label_sizes(level)
            low, high = auroc_interval(value, positives[0], negatives[0], level)
            off = f"from binned scores: off by at most {float(self.ranked.bound[0]):.0e}" if self.ranked.bound[0] > 0 else ""
            return Estimate(value, float(low), float(high), off)
        value, variance, found = self.ranked.average_precision, self.ranked.precision_variance, self.moments["tpr"]
        size = min(float(found.rows[0]), value * (1 - value) / variance) if variance > 0 else float(found.effective[0])
        low, high = wilson(value, fewer_clusters(size, found.degrees[0], level), level)
        return Estimate(value, float(low), float(high), "from binned scores" if self.ranked.bound[0] > 0 else "")

    def _label_sizes(self, level: float) -> list[FloatArray]:
        """The effective numbers of positives and negatives of each group for AUROC: of patients, if the scores separate the labels."""
        sides, count = [self.moments[name] for name in ("tpr", "fpr")], self.moments["selection_rate"].patients
        between = self.ranked.variance * np.where(np.isinf(self.moments["selection_rate"].degrees), 1.0, ratio(count - 1, count))
        unclustered = self.ranked.unclustered
        effect = auroc_design_effect(self.ranked.auroc, between, unclustered, *(side.rows for side in sides))
        varies = (unclustered > 0) & (between > 0)
        degrees = np.minimum(*(side.degrees for side in sides))
        return [fewer_clusters(np.where(varies, side.rows / effect, side.effective), degrees, level) for side in sides]
