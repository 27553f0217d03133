"""FairClassifier: scikit-learn's own checks, and that it repairs, searches and predicts as its conventions ask."""

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, GroupKFold, ShuffleSplit, StratifiedGroupKFold, cross_val_predict
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import parametrize_with_checks

import equipoise as eq
from equipoise.errors import BadInput
from equipoise.sklearn import FairClassifier, NothingRepaired
from support import ward


@parametrize_with_checks([FairClassifier(LogisticRegression())])
@pytest.mark.filterwarnings("ignore")
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


def patients(rows=1600, seed=0):
    """The columns, the labels in words, and the groups."""
    frame = ward.patients(rows, seed)
    return frame[["marker", "ward", "sex"]], np.where(frame["sick"], "ill", "well"), frame["sex"].to_numpy(dtype=str)


X, Y, SEX = patients()
NEW, NEW_Y, NEW_SEX = patients(seed=1)
MODEL = make_pipeline(make_column_transformer((OneHotEncoder(), ["ward"]), (StandardScaler(), ["marker"])), LogisticRegression())


def gap(decided):
    """The difference in sensitivity, women minus men."""
    rates = [np.mean(decided[(sex == NEW_SEX) & (NEW_Y == "ill")] == "ill") for sex in ("F", "M")]
    return rates[0] - rates[1]


def fair_classifier(estimator, **options):
    """Whose rules may raise or lower the rates of any group."""
    free = {"allow_worse": True, "max_rise": {"fpr": 1, "selection": 1}}
    return FairClassifier(estimator, pos_label="ill", max_loss=0.1, **free | options)


@pytest.mark.parametrize("cv", [None, 2, "prefit"])
def test_the_gap_of_new_rows_is_smaller(cv):
    plain = MODEL.fit(X, Y)
    fair = fair_classifier(plain, group="sex", method="group-thresholds", cv=cv).fit(X, Y)
    assert fair.rule_.needs_group
    assert abs(gap(fair.predict(NEW))) < abs(gap(plain.predict(NEW))) / 2
    assert set(fair.predict(NEW)) == {"ill", "well"}
    np.testing.assert_array_equal(fair.predict_proba(NEW), fair.estimator_.predict_proba(NEW))
    assert fair.outcome_ == fair.candidate_.outcome
    assert (cv == "prefit") == (fair.estimator_ is plain)
    one_group = NEW[NEW["sex"] == "F"]
    np.testing.assert_array_equal(fair.predict(one_group), fair.predict(NEW)[NEW["sex"] == "F"])


def test_a_rule_without_groups_predicts_without_the_group():
    columns = X[["marker", "ward"]]
    fair = fair_classifier(MODEL, method="bias-score").fit(columns, Y, sensitive_features=SEX)
    assert not fair.rule_.needs_group
    assert abs(gap(fair.predict(NEW[["marker", "ward"]]))) < abs(gap(MODEL.fit(X, Y).predict(NEW)))
    np.testing.assert_array_equal(fair.predict(NEW[["marker", "ward"]][:1]), fair.predict(NEW[["marker", "ward"]])[:1])


def test_a_group_rule_requires_the_group():
    fair = fair_classifier(LogisticRegression(), method="group-thresholds").fit(X[["marker"]], Y, sensitive_features=SEX)
    with pytest.raises(BadInput, match="sensitive_features"):
        fair.predict(NEW[["marker"]])
    assert abs(gap(fair.predict(NEW[["marker"]], sensitive_features=NEW_SEX))) < 0.2
    blind = fair_classifier(LogisticRegression(), method="group-thresholds", allow_group=False)
    with pytest.raises(BadInput, match="allow_group"):
        blind.fit(X[["marker"]], Y, sensitive_features=SEX)


def test_rule_and_estimator_are_fitted_to_different_rows():
    seen = []

    class Watched(LogisticRegression):
        def fit(self, X, y):
            seen.append(set(X[:, 0]))
            return super().fit(X, y)

    rows = np.column_stack([np.arange(1600.0), X["marker"]])
    patient = np.arange(1600) // 4
    fair = FairClassifier(Watched(), method="single-threshold").fit(rows, Y, sensitive_features=SEX, patients=patient)
    held_out = 1600 - len(seen[0])
    assert 0.25 * 1600 < held_out < 0.35 * 1600
    assert len(fair.candidate_.held_out.before) == held_out
    fitted_on = {int(row) // 4 for row in seen[0]}
    assert len(fitted_on) == len(seen[0]) / 4  # whole patients


def test_in_a_pipeline_and_a_grid_search():
    search = GridSearchCV(
        FairClassifier(Pipeline([("prepare", MODEL[0]), ("model", LogisticRegression())]), group="sex", method="group-thresholds"),
        {"max_loss": [0.0, 0.1], "estimator__model__C": [1.0]},
        cv=2,
        scoring="balanced_accuracy",
        error_score="raise",
    ).fit(X, Y)
    assert search.best_params_["max_loss"] in (0.0, 0.1)
    assert search.predict(NEW).shape == (1600,)
    with sklearn.config_context(enable_metadata_routing=True):
        fair = fair_classifier(LogisticRegression(), method="group-thresholds")
        fair.set_fit_request(sensitive_features=True).set_predict_request(sensitive_features=True)
        whole = make_pipeline(StandardScaler(), fair).fit(X[["marker"]], Y, sensitive_features=SEX)
        assert whole.predict(NEW[["marker"]], sensitive_features=NEW_SEX).shape == (1600,)


def test_a_search_scores_rules_that_need_the_group():
    fair = fair_classifier(LogisticRegression(), method="group-thresholds").fit(X[["marker"]], Y, sensitive_features=SEX)
    accuracy = np.mean(fair.predict(NEW[["marker"]], sensitive_features=NEW_SEX) == NEW_Y)
    assert fair.score(NEW[["marker"]], NEW_Y, sensitive_features=NEW_SEX) == pytest.approx(accuracy)
    with pytest.raises(BadInput, match="set_score_request"):
        fair.score(NEW[["marker"]], NEW_Y)
    with sklearn.config_context(enable_metadata_routing=True):
        fair.set_fit_request(sensitive_features=True).set_score_request(sensitive_features=True)
        search = GridSearchCV(fair, {"repair_size": [0.3, 0.5]}, cv=2, error_score="raise").fit(X[["marker"]], Y, sensitive_features=SEX)
    assert (search.cv_results_["mean_test_score"] > 0.5).all()


def test_a_randomised_rule_decides_by_the_index_of_the_rows():
    ids, new = X.set_axis([f"a{k}" for k in range(len(X))]), NEW.set_axis([f"b{k}" for k in range(len(NEW))])
    fair = fair_classifier(MODEL, group="sex", method="equalised-odds", settings={"selection": "paper"}).fit(ids, Y)
    assert fair.rule_.randomised
    decided = fair.predict(new)
    np.testing.assert_array_equal(fair.predict(new[::-1]), decided[::-1])
    chance = fair.rule_.decide(eq.Scores.from_arrays(NEW_Y == "ill", fair.predict_proba(NEW)[:, 0], NEW_SEX))
    unsure = np.flatnonzero((chance > 0.01) & (chance < 0.99))[:20]
    single = [fair.predict(new.iloc[[row]])[0] for row in unsure]
    assert single == decided[unsure].tolist()
    assert set(single) == {"ill", "well"}
    for rows in (NEW, NEW[:1], NEW[NEW["sex"] == "F"]):  # the index of these rows are numbers
        with pytest.raises(BadInput, match=r"randomised.*index"):
            fair.predict(rows)
    with pytest.raises(BadInput, match=r"randomised.*index"):
        fair.fit(X, Y)


def test_auto_takes_no_randomised_rule_for_rows_without_ids():
    fair = fair_classifier(LogisticRegression(), group="sex").fit(X[["marker", "sex"]][:400], Y[:400])
    assert "group-thresholds" in fair.candidate_.settings["methods"]
    assert "equalised-odds" not in fair.candidate_.settings["methods"]


@pytest.mark.parametrize("groups", [SEX, (SEX == "F").astype(int)], ids=["text", "numbers"])
def test_the_reference_is_one_of_the_groups(groups):
    fair = fair_classifier(LogisticRegression(), method="group-thresholds")
    for reference in np.unique(groups):
        fair.set_params(reference=reference.item()).fit(X[["marker"]], Y, sensitive_features=groups)
        assert fair.rule_.groups[0] == str(reference)
    with pytest.raises(BadInput, match=rf"'zzz'.*{', '.join(map(str, np.unique(groups)))}"):
        fair.set_params(reference="zzz").fit(X[["marker"]], Y, sensitive_features=groups)


def test_random_state_follows_the_convention():
    fair = fair_classifier(MODEL, group="sex", method="group-thresholds", random_state=None).fit(X, Y)
    assert fair.predict(NEW).shape == (1600,)
    seeds = [fair.set_params(random_state=np.random.RandomState(3)).fit(X[:800], Y[:800]).seed_ for _ in range(2)]
    assert seeds[0] == seeds[1]
    with pytest.raises(ValueError, match="seed"):
        fair.set_params(random_state="x").fit(X, Y)


def test_a_decision_function_is_enough():
    fair = fair_classifier(LinearSVC(), group=0, method="group-thresholds")
    array = np.column_stack([SEX == "F", X["marker"]])
    fair.fit(array, Y)
    assert not hasattr(fair, "predict_proba")
    assert fair.decision_function(array).shape == (1600,)
    assert fair.estimator_.n_features_in_ == 1  # the group is no input


def test_without_a_group_nothing_is_repaired_and_a_warning_is_shown():
    with pytest.warns(NothingRepaired):
        fair = FairClassifier(LogisticRegression()).fit(X[["marker"]], Y)
    assert fair.rule_ is None
    assert fair.outcome_ is None
    np.testing.assert_array_equal(fair.predict(X[["marker"]]), fair.estimator_.predict(X[["marker"]]))


def test_invalid_input_is_rejected():
    with pytest.raises(BadInput, match=r"'race'.*marker, ward, sex"):
        FairClassifier(MODEL, group="race").fit(X, Y)
    with pytest.raises(BadInput, match="cv must be"):
        FairClassifier(MODEL, group="sex", cv=1).fit(X, Y)
    with pytest.raises(BadInput, match=r"(?s)cv must be.*GroupKFold.*patients="):
        FairClassifier(MODEL, group="sex", cv=GroupKFold(3)).fit(X, Y)
    with pytest.raises(BadInput, match="every row once"):
        FairClassifier(MODEL, group="sex", cv=ShuffleSplit(2, test_size=0.5, random_state=0)).fit(X, Y)
    with pytest.raises(BadInput, match=r"(?s)Pipeline.*sample_weight.*routing"):
        FairClassifier(MODEL, group="sex").fit(X, Y, sample_weight=np.ones(1600))
    fair, cube = fair_classifier(LogisticRegression(), method="group-thresholds"), np.full((1600, 2, 1), "F")
    with pytest.raises(BadInput, match=r"sensitive_features.*\(1600, 2, 1\)"):
        fair.fit(X[["marker"]], Y, sensitive_features=cube)
    fair.fit(X[["marker"]], Y, sensitive_features=SEX[:, None])  # one column is a group
    for given in (cube, SEX[:7]):
        with pytest.raises(BadInput, match=r"sensitive_features.*1,600"):
            fair.predict(NEW[["marker"]], sensitive_features=given)
    with pytest.raises(BadInput, match="repair_size"):
        FairClassifier(MODEL, group="sex", repair_size=1.5).fit(X, Y)
    with pytest.raises(eq.BadInput, match="too few"):
        FairClassifier(LogisticRegression(), group="sex", cv="prefit").set_params(estimator=MODEL.fit(X, Y)).fit(X[:12], Y[:12])


def test_several_attributes_are_crossed():
    fair = fair_classifier(MODEL, group=["sex", "ward"], attribute_as_input=True, method="group-thresholds").fit(X, Y)
    wards = sorted(X["ward"].unique())
    assert set(fair.rule_.groups) == {f"{sex} & {ward}" for sex in "FM" for ward in wards}
    given = fair_classifier(MODEL, method="group-thresholds").fit(X, Y, sensitive_features=X[["sex", "ward"]])
    np.testing.assert_array_equal(given.predict(NEW, sensitive_features=NEW[["sex", "ward"]]), fair.predict(NEW))
    options = {"reference": ("M", wards[0]), "settings": {"selection": "paper"}}
    one = fair_classifier(MODEL, method="group-thresholds", **options).fit(X, Y, sensitive_features=X[["sex", "ward"]])
    assert one.rule_.groups[0] == f"M & {wards[0]}"
    hidden = fair_classifier(LogisticRegression(), group=["sex", "ward"], method="group-thresholds").fit(X, Y)
    assert hidden.estimator_.n_features_in_ == 1


HALVES = np.arange(800), np.arange(800, 1600)


@pytest.mark.parametrize("splitter", [GroupKFold(4), StratifiedGroupKFold(4), [HALVES, HALVES[::-1]]])
def test_a_splitter_gives_the_out_of_fold_scores(splitter):
    """The rule is that of scikit-learn's own out-of-fold predictions with the same splitter."""
    patient = np.arange(1600) // 4
    options = {"group": "sex", "method": "group-thresholds"}
    fair = fair_classifier(MODEL, cv=splitter, **options).fit(X, Y, patients=patient)
    out_of_fold = cross_val_predict(MODEL, X[["marker", "ward"]], Y, groups=patient, cv=splitter, method="predict_proba")[:, 0]
    scores = eq.Scores.from_arrays((Y == "ill").astype(int), out_of_fold, SEX, patients=patient, reference=fair.rule_.groups[0])
    rule = eq.debias(scores, method="group-thresholds", max_loss=0.1, allow_worse=True, max_rise={"fpr": 1, "selection": 1}, seed=0).rule
    assert fair.rule_.thresholds == pytest.approx(rule.thresholds)


def test_weights_count_for_estimator_and_rule():
    """A weight of three is as good as three rows, for an estimator that was fitted and for the rule."""
    weight = np.where(SEX == "F", 3.0, 1.0)
    repeated = np.repeat(np.arange(1600), weight.astype(int))
    model = LogisticRegression().fit(X[["marker"]], Y)
    options = {"cv": "prefit", "method": "group-thresholds", "settings": {"selection": "paper"}, "reference": "M"}
    weighted = fair_classifier(model, **options).fit(X[["marker"]], Y, sensitive_features=SEX, sample_weight=weight)
    plain = fair_classifier(model, **options).fit(X.loc[repeated, ["marker"]], Y[repeated], sensitive_features=SEX[repeated])
    assert weighted.rule_.thresholds == pytest.approx(plain.rule_.thresholds)
    seen = []

    class Watched(LogisticRegression):
        def fit(self, X, y, sample_weight=None):
            seen.append(sample_weight)
            return super().fit(X, y, sample_weight)

    FairClassifier(Watched(), method="single-threshold").fit(X[["marker"]], Y, weight, sensitive_features=SEX)
    assert set(np.unique(seen[0])) == {1.0, 3.0}
    zero = np.where(np.arange(1600) < 1200, 1.0, 0.0)
    some = FairClassifier(model, cv="prefit", method="single-threshold").fit(X[["marker"]], Y, zero, sensitive_features=SEX)
    assert len(some.candidate_.held_out.before) == 1200


def test_metadata_reach_the_estimator_that_requests_them():
    with sklearn.config_context(enable_metadata_routing=True):
        inner = make_pipeline(StandardScaler(), LogisticRegression().set_fit_request(sample_weight=True))
        inner[0].set_fit_request(sample_weight=False)
        fair = fair_classifier(inner, method="group-thresholds", cv=3)
        fair.set_fit_request(sensitive_features=True, sample_weight=True, patients=True)
        fair.set_predict_request(sensitive_features=True).set_score_request(sensitive_features=True, sample_weight=True)
        weight, patient = np.where(SEX == "F", 2.0, 1.0), np.arange(1600)
        fair.fit(X[["marker"]], Y, sensitive_features=SEX, sample_weight=weight, patients=patient)
        expected = inner.fit(X[["marker"]], Y, sample_weight=weight)
        np.testing.assert_allclose(fair.predict_proba(NEW[["marker"]]), expected.predict_proba(NEW[["marker"]]))
        search = GridSearchCV(fair, {"max_loss": [0.05, 0.1]}, cv=2, error_score="raise")
        search.fit(X[["marker"]], Y, sensitive_features=SEX, sample_weight=weight)
        assert search.score(NEW[["marker"]], NEW_Y, sensitive_features=NEW_SEX) > 0.5


def test_one_of_several_classes_is_repaired_against_the_others():
    rng = np.random.default_rng(0)
    three = np.where(Y == "ill", "ill", np.where(rng.random(1600) < 0.5, "well", "unsure"))
    with pytest.raises(ValueError, match=r"(?s)Only binary.*pos_label"):
        FairClassifier(MODEL, group="sex").fit(X, three)
    fair = fair_classifier(MODEL, group="sex", method="group-thresholds").fit(X, three)
    decided, chances = fair.predict(NEW), fair.predict_proba(NEW)
    assert set(decided) <= {"ill", "unsure", "well"}
    assert abs(gap(decided)) < abs(gap(MODEL.fit(X[["marker", "ward"]].assign(sex=SEX), three).predict(NEW)))
    ill = list(fair.classes_).index("ill")
    others = np.delete(fair.classes_, ill)[np.delete(chances, ill, axis=1).argmax(1)]
    np.testing.assert_array_equal(decided[decided != "ill"], others[decided != "ill"])


def test_frames_of_polars_and_of_a_pipeline_that_makes_frames():
    plain = fair_classifier(MODEL, group="sex", method="group-thresholds").fit(X, Y)
    scaled = make_pipeline(
        make_column_transformer((StandardScaler(), ["marker"]), remainder="passthrough", verbose_feature_names_out=False),
        fair_classifier(LogisticRegression(), group="sex", method="group-thresholds"),
    ).set_output(transform="pandas")
    assert scaled.fit(X[["marker", "sex"]], Y)[-1].feature_names_in_.tolist() == ["marker", "sex"]
    named = X.set_axis([f"a{k}" for k in range(len(X))])
    frames = clone(plain).set_output(transform="pandas")
    decided = clone(frames).fit(named, Y).predict(named[5:8])
    assert decided.index.tolist() == ["a5", "a6", "a7"]
    assert frames.fit(named, Y).predict_proba(named[:2]).columns.tolist() == ["ill", "well"]
    assert frames.score(NEW, NEW_Y) == plain.score(NEW, NEW_Y)
    assert isinstance(frames.set_output(transform="default").predict(NEW), np.ndarray)
    with pytest.raises(BadInput, match="numpy"):
        frames.set_output(transform="numpy")
    polars = pytest.importorskip("polars")
    rows, new = (polars.DataFrame(frame.to_dict("list")) for frame in (X, NEW))
    same = fair_classifier(MODEL, group="sex", method="group-thresholds").fit(rows, Y)
    np.testing.assert_array_equal(same.predict(new), plain.predict(NEW))
    assert isinstance(same.set_output(transform="polars").predict(new), polars.Series)
    assert same.predict_proba(new).columns == ["ill", "well"]
    blind = fair_classifier(LogisticRegression(), group="sex", method="bias-score").fit(rows.drop("ward"), Y)
    assert blind.predict(new.drop("ward")).shape == (1600,)
