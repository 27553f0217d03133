"""Measures equal independent implementations, fairlearn and scikit-learn, to 1e-12."""

import fairlearn.metrics as fl
import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.measures import GAPS, Cells, Ranking, at_threshold, performance_functional
from equipoise.measures.sweeps import gap_functional
from support.random_scores import Sample, samples

FAIRLEARN = {
    "spd": [(1.0, fl.selection_rate)],
    "eod": [(1.0, fl.true_positive_rate)],
    "aod": [(0.5, fl.true_positive_rate), (0.5, fl.false_positive_rate)],
    "fpr_gap": [(1.0, fl.false_positive_rate)],
    "tnr_gap": [(1.0, fl.true_negative_rate)],
    "fnr_gap": [(1.0, fl.false_negative_rate)],
}


def test_every_gap_has_an_oracle():
    assert set(FAIRLEARN) == set(GAPS)


@pytest.mark.parametrize("gap", list(GAPS))
@settings(max_examples=25)  # for each of the gaps; a MetricFrame takes 10 ms
@given(sample=samples(), cut=st.sampled_from([0.0, 0.25, 0.3, 0.5, 0.9]), weighted=st.booleans())
def test_gaps_equal_fairlearn(gap: str, sample: Sample, cut: float, weighted: bool):
    decision = at_threshold(sample.score, cut)
    weight = sample.weight if weighted else None
    expected = np.zeros(len(sample.attribute.levels) - 1)
    for sign, metric in FAIRLEARN[gap]:
        frame = fl.MetricFrame(
            metrics=metric,
            y_true=sample.y,
            y_pred=decision,
            sensitive_features=sample.attribute.names.astype(str),
            sample_params={"sample_weight": weight} if weighted else None,
        ).by_group
        expected += [sign * (frame[level] - frame[sample.attribute.reference]) for level in sample.attribute.others]
    cells = Cells.of(decision, sample.y, sample.attribute, weight)
    np.testing.assert_allclose(cells.gaps(gap), expected, rtol=0, atol=1e-12)
    functionals = [gap_functional(gap, cells.n, k)(cells) for k in range(1, len(sample.attribute.levels))]
    np.testing.assert_allclose(functionals, expected, rtol=0, atol=1e-12)


@given(sample=samples(), cut=st.sampled_from([0.0, 0.25, 0.3, 0.5, 0.9, 1.1]), weighted=st.booleans())
def test_performance_equals_scikit_learn(sample: Sample, cut: float, weighted: bool):
    decision = at_threshold(sample.score, cut)
    weight = sample.weight if weighted else None
    cells = Cells.of(decision, sample.y, sample.attribute, weight)
    ranking = Ranking(sample.score, sample.y)
    pairs = [
        (performance_functional("accuracy", cells.n)(cells), sk.accuracy_score(sample.y, decision, sample_weight=weight)),
        (performance_functional("balanced_accuracy", cells.n)(cells), sk.balanced_accuracy_score(sample.y, decision, sample_weight=weight)),
        (cells.performance("f1"), sk.f1_score(sample.y, decision, sample_weight=weight, zero_division=0.0)),
        (ranking.ranks(weight).auroc, sk.roc_auc_score(sample.y, sample.score, sample_weight=weight)),
        (ranking.ranks(weight).average_precision, sk.average_precision_score(sample.y, sample.score, sample_weight=weight)),
    ]
    for ours, theirs in pairs:
        assert float(ours) == pytest.approx(theirs, abs=1e-12)


def test_ranking_without_both_labels_is_nan_not_zero():
    assert np.isnan(Ranking([0.2, 0.7], [1, 1]).ranks().auroc)
    assert np.isnan(Ranking([0.2, 0.7], [0, 0]).ranks().average_precision)
