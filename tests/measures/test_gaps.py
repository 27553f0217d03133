"""Measures of the user's own: signed sums of rates, however they are written, have one name and the value of the sum."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import BadInput, UnknownName
from equipoise.measures import GAPS, MEASURES, RATES, Cells, canonical_name, measure_of, sweep
from equipoise.methods import Goal
from support.facts import facts, says, suggests
from support.random_scores import Sample, samples

WEIGHTS = st.dictionaries(st.sampled_from(list(RATES)), st.floats(-4, 4).filter(lambda w: abs(w) > 1e-3), min_size=1)


@pytest.mark.parametrize(
    ("given_", "name"),
    [
        ("tpr-fpr", "tpr-fpr"),
        (" tpr - fpr ", "tpr-fpr"),
        ("-fpr+tpr", "tpr-fpr"),
        ({"fpr": -1, "tpr": 1}, "tpr-fpr"),
        ("0.25*tpr + 0.75*fpr", "0.25tpr+0.75fpr"),
        (".25 tpr+0.75fpr", "0.25tpr+0.75fpr"),
        ("tpr+tpr+fpr", "2tpr+fpr"),
        ("tpr + 0*fpr", "eod"),
        ("0.5*tpr + 0.5*fpr", "aod"),  # what has a name keeps it
        ({"selection": 1.0}, "spd"),
        ("-fpr", "tnr_gap"),
        ("ppv_gap", "ppv_gap"),
        ("1e-3tpr-fpr", "0.001tpr-fpr"),
    ],
)
def test_one_measure_has_one_name(given_, name: str):
    assert canonical_name(given_) == name
    assert canonical_name(name) == name
    assert Goal(given_).measure == name
    assert Goal(given_) == Goal(name)


@given(weights=WEIGHTS, sample=samples(missing=True))
def test_a_sum_of_rates_is_the_sum_of_its_gaps(weights: dict[str, float], sample: Sample):
    cells = Cells.of(sample.score, sample.y, sample.attribute)
    name = canonical_name(weights)
    assert dict(measure_of(name).rates) == pytest.approx(weights, rel=1e-11)
    single = {"selection": "spd", "tpr": "eod", "fpr": "fpr_gap"}
    expected = sum(w * cells.gaps(single[rate]) for rate, w in weights.items())
    np.testing.assert_allclose(cells.gaps(name), expected, atol=1e-10)
    assert measure_of(name).labels == tuple(sorted(label for rate in weights if (label := RATES[rate]) is not None))
    mine = "".join(f"{w:+.17g}*{rate}" for rate, w in weights.items())
    swept = sweep(sample.score, sample.y, sample.attribute, (name, mine))
    np.testing.assert_allclose(np.abs(swept.values[name]), np.abs(swept.values[mine]), atol=1e-10)


def test_what_is_no_measure_is_said_with_the_rates_and_an_example():
    with pytest.raises(UnknownName, match=suggests("eod")):
        canonical_name("eodd")
    with pytest.raises(UnknownName, match=suggests("fpr")):
        canonical_name("tpr-frp")
    with pytest.raises(UnknownName, match=facts("ppv")):
        canonical_name({"ppv": 1.0})
    for text in ("", "tpr fpr", "tpr+-fpr", "2*", "tpr-", "0.5", "ppv_gap + eod"):
        with pytest.raises(BadInput):
            canonical_name(text)
    with pytest.raises(BadInput, match=facts("tpr-tpr")):
        canonical_name("tpr-tpr")
    with pytest.raises(BadInput, match="nan"):
        canonical_name({"tpr": float("nan")})
    with pytest.raises(BadInput, match=facts("'1'")):
        canonical_name({"tpr": "1"})  # type: ignore[dict-item]
    with pytest.raises(UnknownName, match=suggests("ppv_gap")):
        Goal("ppv")


def test_every_measure_has_a_meaning():
    assert set(MEASURES) == {*GAPS, "ppv_gap", "npv_gap"}
    assert measure_of("eod").meaning == MEASURES["eod"].meaning
    assert says(measure_of("2tpr-fpr").meaning, 2, "sensitivity", "-", "false positive rate")
    assert [measure_of(m).is_quotient for m in ("ppv_gap", "npv_gap", "eod", "tpr-fpr")] == [True, True, False, False]
