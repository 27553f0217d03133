"""Panels: curves agree with scikit-learn, and everything stays inside the canvas."""

import re
from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import roc_curve

from equipoise.data import Scores
from equipoise.measures import Estimate, Threshold, steps_by_group
from equipoise.methods.thresholds import GroupThresholds
from equipoise.report.audit_pages import subgroup_data
from equipoise.report.audits import LabelSections
from equipoise.report.document import Scale
from equipoise.report.explorer import trajectory_panel
from equipoise.report.panels import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    SHARES,
    TOP,
    WIDTH,
    calibration_panel,
    decision_panels,
    roc_panel,
    score_panel,
)
from support.cases import GOAL, small_case


def _steps(tried):
    return steps_by_group(tried.test, tried.test.attribute, tried.candidate.rule, 5)


def _points(d: str) -> np.ndarray:
    return np.array([[float(v) for v in pair] for pair in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", d)])


def _unit(points: np.ndarray) -> np.ndarray:
    """Points of a panel back as values from 0 to 1."""
    return np.stack([(points[:, 0] - LEFT) / (WIDTH - RIGHT - LEFT), (HEIGHT - BOTTOM - points[:, 1]) / (HEIGHT - BOTTOM - TOP)], axis=1)


@pytest.mark.parametrize("rows", [200, 5000])
def test_roc_curves_are_those_of_scikit_learn(rows: int):
    case = small_case(rows=rows, methods=("bias-gda",))
    scores, attribute = case.original.test, case.original.test.attribute
    panel = roc_panel("before", scores, case.original.decisions(), attribute, _steps(case.original))
    curves = [mark for mark in panel.marks if mark.style == "curve"]
    assert len(curves) == 2
    for code, curve in enumerate(curves):
        fpr, tpr, _ = roc_curve(scores.y[attribute.codes == code], scores.score[attribute.codes == code], drop_intermediate=False)
        drawn = _unit(_points(curve.d))
        assert drawn[0] == pytest.approx([0, 0], abs=1e-3)
        assert drawn[-1] == pytest.approx([1, 1], abs=1e-3)
        # Every drawn point lies on the true curve, to the tenth of a pixel that is written down.
        nearest = np.sqrt(((drawn[:, None] - np.stack([fpr, tpr], axis=1)[None]) ** 2).sum(-1)).min(1)
        assert nearest.max() < 1e-3


def test_the_dot_is_where_the_rule_decides():
    case = small_case()
    scores, attribute = case.result.test, case.result.test.attribute
    panel = roc_panel("after", scores, case.result.decisions(), attribute, _steps(case.result))
    dots = [mark for mark in panel.marks if mark.style == "at"]
    flagged = scores.score >= case.result.candidate.rule.value
    for code, mark in enumerate(dots):
        rows = attribute.codes == code
        middle = _unit(_points(mark.d) + np.array([[4.5, 0.0]]))[0]
        assert middle == pytest.approx([flagged[rows & (scores.y == 0)].mean(), flagged[rows & (scores.y == 1)].mean()], abs=2e-3)


def test_calibration_joins_steps_to_about_ten_parts():
    case = small_case(rows=900, methods=("bias-gda",))
    scores, attribute, steps = case.original.test, case.original.test.attribute, _steps(case.original)
    panel = calibration_panel("before", attribute, steps)
    curves = [m for m in panel.marks if m.style == "curve"]
    assert len(curves) == 2
    for code, mark in enumerate(curves):
        rows = attribute.codes == code
        found = _unit(_points(mark.d))
        assert 2 <= len(found) <= 10
        cuts = steps[steps["group"] == attribute.levels[code]]["threshold"].to_numpy()
        place = np.searchsorted(cuts, scores.score[rows], side="right") - 1
        share = np.bincount(place, minlength=len(cuts)) / rows.sum()
        part = np.minimum((10 * (share.cumsum() - share / 2)).astype(int), 9)[place]
        wanted = [(scores.score[rows][part == k].mean(), scores.y[rows][part == k].mean()) for k in np.unique(part)]
        assert found == pytest.approx(np.array(wanted), abs=2e-3)


@pytest.mark.parametrize("rows", [60, 400])
def test_no_figure_singles_out_fewer_patients_than_the_audit_reports(rows: int):
    case = small_case(rows=rows, groups=("A", "B", "C"), shares=(0.6, 0.32, 0.08), methods=("bias-gda",))
    scores, attribute, steps = case.original.test, case.original.test.attribute, _steps(case.original)
    used = case.original.candidate.rule.value
    few = [k for k in range(3) if min(((attribute.codes == k) & (scores.y == y)).sum() for y in (0, 1)) < 5]
    assert bool(few) == (rows == 60)
    roc = roc_panel("r", scores, case.original.decisions(), attribute, steps)
    for code, level in enumerate(attribute.levels):
        drawn = [mark for mark in roc.marks if mark.colour == code]
        bars = [mark for mark in score_panel("s", scores, Threshold(0.5), attribute, code, steps).marks if mark.style.startswith("area")]
        assert bool(drawn) == bool(bars) == (code not in few)
        assert (f"{level}: " in roc.says) == (code not in few)
        for label, name in ((1, "above_positive"), (0, "above_negative")):
            own = steps[steps["group"] == level]
            above = np.append(own[name].to_numpy(), 0.0)
            counted = [(scores.score[(attribute.codes == code) & (scores.y == label)] >= t).sum() for t in own["threshold"]]
            assert above[:-1].tolist() == counted
            flagged = (scores.score[(attribute.codes == code) & (scores.y == label)] >= used).sum()  # which is reported anyway
            fewer = -np.diff(above)
            assert ((fewer == 0) | (fewer >= 5) | np.isin(fewer, [flagged, above[0] - flagged])).all()
    curves = decision_panels(attribute.name, [("before", case.found.before)])
    assert [panel.title for panel in curves] == [level for k, level in enumerate(attribute.levels) if k not in few]
    explored = {row["name"]: row["values"] for row in subgroup_data(LabelSections(case.found.before))["groups"]}
    for k, level in enumerate(attribute.levels):
        assert all(value is None for value, *_ in explored[level][1:3]) == (k in few)  # sensitivity and specificity


def test_each_rule_has_its_thresholds_for_a_group():
    case = small_case()
    rules = {repair.name: repair.candidate.rule for repair in case.candidates}
    assert Threshold(0.3).cuts("F") == (0.3,)
    band = rules["reject-option"]
    assert sorted([*band.cuts("F"), *band.cuts("M")]) == pytest.approx([band.threshold - band.margin, band.threshold + band.margin])
    odds = rules["equalised-odds"]
    assert odds.cuts("M") == odds.steps[odds.groups.index("M")].thresholds


def test_a_threshold_a_group_is_marked_in_the_figures_of_that_group():
    scores = small_case(methods=("bias-gda",)).original.test
    rule, attribute = GroupThresholds(("M", "F"), (0.6, 0.3), 0.5), scores.attribute
    assert (rule.cuts("M"), rule.cuts("F"), rule.cuts("X")) == ((0.6,), (0.3,), ())
    for code, cut in enumerate((0.6, 0.3)):
        marks = [
            mark
            for mark in score_panel("s", scores, rule, attribute, code, steps_by_group(scores, attribute, rule, 5)).marks
            if mark.style == "cut"
        ]
        assert [_unit(_points(mark.d))[0, 0] for mark in marks] == pytest.approx([cut], abs=1e-3)
    dots = [
        mark
        for mark in roc_panel("r", scores, rule.decide(scores), attribute, steps_by_group(scores, attribute, rule, 5)).marks
        if mark.style == "at"
    ]
    for code, (mark, cut) in enumerate(zip(dots, (0.6, 0.3), strict=True)):
        rows = attribute.codes == code
        middle = _unit(_points(mark.d) + np.array([[4.5, 0.0]]))[0]
        expected = [(scores.score[rows & (scores.y == label)] >= cut).mean() for label in (0, 1)]
        assert middle == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize(("chosen", "look"), [("group-thresholds", "try gap"), ("bias-score", "track gap")])
def test_the_trace_of_auto_is_drawn_as_that_of_the_method_it_took(chosen: str, look: str):
    repair = small_case(methods=("bias-gda",)).candidates[0]
    told = replace(repair.candidate, method="auto", ran_as=chosen)
    assert look in {mark.style for mark in trajectory_panel(replace(repair, candidate=told), GOAL).marks}


@pytest.mark.parametrize("options", [{}, {"steps": 900}, {"rows": 50}])
def test_nothing_is_drawn_outside_its_panel(options: dict):
    case = small_case(**options)
    scores, attribute = case.result.test, case.result.test.attribute
    panels = [trajectory_panel(repair, GOAL) for repair in case.candidates]
    panels += [
        score_panel("F", scores, case.result.candidate.rule, attribute, 1, _steps(case.result)),
        roc_panel("r", scores, case.result.decisions(), attribute, _steps(case.result)),
    ]
    for panel in panels:
        assert panel.says
        for mark in panel.marks:
            points = _points(mark.d)
            assert (points[:, 0] >= LEFT - 6).all()
            assert (points[:, 0] <= WIDTH - RIGHT + 6).all()
            assert (points[:, 1] >= TOP - 6).all()
            assert (points[:, 1] <= HEIGHT - BOTTOM + 6).all()


def test_a_long_trajectory_keeps_its_extremes():
    case = small_case(steps=3000, methods=("bias-gda",))
    trace = case.candidates[0].candidate.trace
    panel = trajectory_panel(case.candidates[0], GOAL)
    track = next(m for m in panel.marks if m.style == "track performance")
    drawn = _points(track.d)
    assert len(drawn) < 600
    bottom = np.ceil(-(trace["gap"].min() - 0.03) * 10) / 10  # the axis goes from -bottom to 1
    height = (HEIGHT - BOTTOM - TOP) * (1 - trace["performance"].max()) / (1 + bottom)
    assert drawn[:, 1].min() == pytest.approx(TOP + height, abs=0.2)


def test_a_path_breaks_where_a_value_is_missing():
    assert SHARES.curve("curve", [(0, 0), (0.5, np.nan), (0.5, 0.5), (1, 1)]).d == "M48 182M175 97L302 12"


def test_the_axis_of_intervals_holds_them_and_stays_possible():
    share = Scale.of([Estimate(0.7, 0.62, 0.95), Estimate(np.nan, np.nan, np.nan)], "share")
    assert (share.low, share.high) == (0.6, 1.0)
    points = Scale.of([Estimate(-0.2, -0.31, 0.12)], "points")
    assert points.low == -points.high
    assert points.low <= -0.31
    unknown = Scale.of([Estimate(np.nan, np.nan, np.nan)], "share")
    assert (unknown.low, unknown.high) == (0.0, 1.0)


def test_a_row_of_weight_three_is_drawn_as_three_rows():
    """ROC curves, calibration, distributions, and the shares that they state."""
    rng = np.random.default_rng(0)
    y, score, group = rng.integers(0, 2, 400), rng.random(400), rng.choice(["F", "M"], 400)
    weight = rng.integers(1, 4, 400)
    once = Scores.from_arrays(y, score, group, reference="M", weights=weight.astype(float))
    rows = np.repeat(np.arange(400), weight)
    repeated = Scores.from_arrays(y[rows], score[rows], group[rows], reference="M")
    rule = Threshold(0.4)
    steps = {len(own): steps_by_group(own, own.attribute, rule, 5) for own in (once, repeated)}
    for draw in (
        lambda own: roc_panel("", own, rule.decide(own), own.attribute, steps[len(own)]),
        lambda own: calibration_panel("", own.attribute, steps[len(own)]),
        lambda own: score_panel("", own, rule, own.attribute, 1, steps[len(own)]),
    ):
        assert draw(once).says == draw(repeated).says
    both = [own.set_index(["group", "threshold"])[["above_positive", "above_negative"]] for own in steps.values()]
    common = both[0].index.intersection(both[1].index)
    assert len(common) > 10
    ratio = both[1].loc[common] / both[0].loc[common]
    assert np.ptp(ratio[ratio.notna().all(axis=1)].to_numpy()) == pytest.approx(0, abs=1e-9)
    unweighted = Scores.from_arrays(y, score, group, reference="M")
    plain = steps_by_group(unweighted, unweighted.attribute, rule, 5)
    assert (
        roc_panel("", unweighted, rule.decide(unweighted), unweighted.attribute, plain).says
        != roc_panel("", once, rule.decide(once), once.attribute, steps[400]).says
    )
