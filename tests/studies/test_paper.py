"""Settings and results of the paper are complete; some are compared with its tables by hand."""

from pathlib import Path

import pytest

from equipoise.studies import CATALOGUE, PRESETS, published, read_plan
from equipoise.studies.summary import _paper_tables, published_sizes


def test_every_published_cell_is_present() -> None:
    # Table 1: 3 data x 2 measures x 7 methods; MIMIC-III likewise; MIMIC-CXR 4 x 7; in-processing 6 x 2 + 4; simulations 2 x 6 x 2 x 3.
    counts = {part: sum(len(methods) for data in table.values() for methods in data.values()) for part, table in _paper_tables().items()}
    assert counts == {"test": 42 + 42 + 28 + 16 + 72, "validation": 28}


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("paper")])
def test_every_cell_of_a_preset_has_a_published_number(name: str) -> None:
    plan = read_plan(name)
    for data in plan.data:
        if not data.optional:
            assert all(published(data.published, measure, arm.method) for arm in plan.methods for measure in plan.measures), data.name


@pytest.mark.parametrize(
    ("cell", "numbers"),
    [
        (("adult/sex", "eod", "pruning"), (-0.01, 0.03, 0.78, 0.02)),
        (("compas/race", "spd", "adversarial-training"), (0.05, 0.04, 0.60, 0.03)),
        (("mimic-iii/insurance", "spd", "bias-gda"), (-0.01, 0.02, 0.73, 0.01)),
        (("zafar/0.7", "eod", "bias-gda"), (-0.09, 0.03, 0.83, 0.03)),
        (("mimic-cxr/ethnicity/resnet-18", "eod", "adversarial-training"), (-0.13, 0.07, 0.71, 0.02)),
    ],
)
def test_numbers_as_printed(cell: tuple[str, str, str], numbers: tuple[float, ...]) -> None:
    assert published(*cell) == numbers


def test_no_number_where_the_paper_has_none() -> None:
    assert published("", "spd", "standard") is None
    assert published("mimic-cxr/sex/vgg-16", "spd", "standard") is None


def test_floors_and_settings_of_the_hyperparameter_table() -> None:
    plan = read_plan("paper-tabular")
    cells = [(arm, data, m) for arm in ("pruning", "bias-gda") for data in ("adult", "bank", "compas-blind") for m in ("spd", "eod")]
    floors = [plan.arm(arm).goal(data, measure, plan.performance).min_performance for arm, data, measure in cells]
    assert floors == [0.52, 0.75, 0.80, 0.70, 0.55, 0.55, 0.62, 0.80, 0.70, 0.70, 0.61, 0.58]
    assert plan.arm("bias-gda").settings == {"schedule": "paper", "learning_rate": 1e-5, "batch": 256, "epochs": 200, "evals_per_epoch": 3}
    assert plan.arm("random").goal("adult", "spd", plan.performance).max_gap == 0.05
    mimic = read_plan("paper-mimic-iii")
    assert mimic.arm("bias-gda").settings["epochs"] == 100
    assert mimic.arm("pruning").goal("mimic-iii-age", "eod", mimic.performance).min_performance == 0.60


def test_simulations_as_in_the_published_code() -> None:
    """Loh is resampled for each split; Zafar's splits share one data set, that of seed 42; 30,000 rows each."""
    plan = read_plan("paper-sensitivity")
    assert plan.splits == 10
    assert [d.name for d in plan.data][:2] == ["loh-0.1", "loh-0.5"]
    for data in plan.data:
        assert data.source is not None
        assert data.options["n"] == 30_000
        assert data.redraw == (data.source == "loh")
        if data.source == "zafar":
            assert (data.options["seed"], data.options["mapping"], data.options["clockwise"]) == (42, "low-rank", True)
        else:
            assert "seed" not in data.options


def test_published_variants_are_separate_arms() -> None:
    plan = read_plan("paper-tabular")
    ours, theirs = ([arm for arm in plan.methods if arm.name.endswith("-published") == published] for published in (False, True))
    assert {arm.method for arm in ours} - {arm.method for arm in theirs} == {"adversarial-training"}
    assert all(arm.name == arm.method and not arm.training for arm in ours)
    for arm in theirs:
        default = plan.arm(arm.method)
        assert plan.recipe("adult", arm.training) == {"restore": "last", "patience": 110}
        for data in ("adult", "bank", "compas"):
            for measure in plan.measures:
                assert arm.goal(data, measure, plan.performance) == default.goal(data, measure, plan.performance)
    changed = {arm.method: {k: v for k, v in arm.settings.items() if plan.arm(arm.method).settings.get(k) != v} for arm in theirs}
    assert changed == {
        "standard": {},
        "random": {},
        "reject-option": {"direction": "kamiran", "quantiles": 0},
        "equalised-odds": {"base": "threshold"},
        "adversarial-finetune": {"restore": "last"},
        "pruning": {"reselect": True},
        "bias-gda": {"mode": "train"},
    }


def test_both_tables_of_simulations_have_the_published_arms() -> None:
    assert [arm.name for arm in read_plan("paper-sensitivity").methods] == [
        *("standard", "pruning", "bias-gda"),
        *("standard-published", "pruning-published", "bias-gda-published"),
    ]


def test_departures_have_the_limits_and_the_training_of_their_table() -> None:
    plan, table = read_plan(Path(__file__).parents[2] / "experiments/departures/departures.toml"), read_plan("paper-tabular")
    assert plan.trainings == table.trainings
    assert (plan.splits, plan.training) == (table.splits, table.training)
    for arm in plan.methods:
        for data in ("adult", "bank", "compas"):
            for measure in plan.measures:
                assert arm.goal(data, measure, plan.performance) == table.arm(arm.method).goal(data, measure, plan.performance)


def test_sizes_of_the_papers_table_of_data_sets() -> None:
    """Every real data set has its sizes; ours from whole files have the same, up to rounding of the fractions."""
    for name in ("paper-tabular", "paper-mimic-iii", "paper-mimic-cxr"):
        for data in read_plan(name).data:
            assert bool(published_sizes(data.published)) == bool(data.published)
    assert published_sizes("mimic-cxr/ethnicity/vgg-16") == (3_984, 930, 1_122)
    assert published_sizes("zafar/0.7") is None
    for source in ("adult", "bank", "compas"):
        sizes = published_sizes(source)
        assert sizes is not None
        assert sum(sizes) == CATALOGUE[source].rows
