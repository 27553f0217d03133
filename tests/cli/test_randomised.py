"""Decisions of a randomised rule depend on the seed and on each row's id, score and group: not on its position or the rows next to it."""

import hashlib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from support.command import ran
from support.facts import says

ROLES = ("--label", "y", "--score", "p", "--group", "sex", "--reference", "M")
# Chosen in-sample, whatever it costs a group.
METHOD = ("--method", "equalised-odds", "--threshold", 0.5, "--max-loss", 0.2, "--set", "goal.selection=paper")


def _frame(rows: int = 800) -> pd.DataFrame:
    """Scores that find the women's findings less well, one row per image and two images per patient."""
    rng = np.random.default_rng(0)
    sex, y = np.repeat(rng.choice(["F", "M"], rows // 2), 2), rng.integers(0, 2, rows)
    p = 1 / (1 + np.exp(-rng.normal(np.where(sex == "F", 0.6, 1.6) * (2 * y - 1), 1.0)))
    image, patient = ([f"{what}-{k // each:05d}" for k in range(rows)] for what, each in (("image", 1), ("patient", 2)))
    return pd.DataFrame({"image": image, "patient": patient, "y": y, "sex": sex, "p": p})


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Rules of one table, repaired with row ids, with patient ids only, and without either."""
    place = tmp_path_factory.mktemp("randomised")
    _frame().to_csv(place / "scores.csv", index=False)
    folders = {}
    for name, ids in {"rows": ("--set", "data.id=image", "--patient", "patient"), "patients": ("--patient", "patient"), "none": ()}.items():
        folders[name] = place / name
        done = ran("debias", place / "scores.csv", *ROLES, *METHOD, *ids, "--out", folders[name])
        assert done.code == 0, done.err
    return folders


@pytest.fixture(scope="module")
def new() -> pd.DataFrame:
    """New rows, of which many have a probability between 0 and 1."""
    return _frame(3000).drop(columns="y").assign(image=lambda f: "new-" + f["image"], patient=lambda f: "new-" + f["patient"])


def _applied(folder: Path, frame: pd.DataFrame, place: Path, *options: object) -> pd.DataFrame:
    frame.to_csv(place / "new.csv", index=False)
    done = ran("apply", folder, place / "new.csv", "--out", place / "decisions.csv", *options)
    assert done.code == 0, done.err
    return pd.read_csv(place / "decisions.csv", dtype={"image": str, "patient": str})


def test_a_decision_does_not_depend_on_the_rows_around_it(rules: dict[str, Path], new: pd.DataFrame, tmp_path: Path) -> None:
    whole = _applied(rules["rows"], new, tmp_path).set_index("image")
    unsure = whole["probability"].between(0.01, 0.99)
    assert unsure.sum() > 100
    backwards = _applied(rules["rows"], new[::-1], tmp_path).set_index("image")
    pd.testing.assert_frame_equal(backwards.loc[whole.index], whole)
    halves = [_applied(rules["rows"], part, tmp_path) for part in (new[:1000], new[1000:])]
    pd.testing.assert_frame_equal(pd.concat(halves).set_index("image"), whole)
    bundle = eq.Bundle.load(rules["rows"])
    rows = np.flatnonzero(unsure)[:40]
    single = [int(bundle.decide(new.iloc[[row]])["decision"].iloc[0]) for row in rows]
    assert single == whole["decision"].iloc[rows].tolist()
    assert {0, 1} == set(single)


def test_decisions_are_as_frequent_as_their_probabilities(rules: dict[str, Path], new: pd.DataFrame, tmp_path: Path) -> None:
    for seed in (0, 1, 2):
        found = _applied(rules["rows"], new, tmp_path, "--set", f"apply.seed={seed}")
        sums = found.groupby(found["probability"].round(6))["decision"].agg(["sum", "count"])
        p, count = sums.index.to_numpy(), sums["count"].to_numpy()
        assert (sums["sum"].to_numpy()[(p == 0) | (p == 1)] == (p * count)[(p == 0) | (p == 1)]).all()
        inside = (p > 0) & (p < 1)
        assert count[inside].max() > 100
        z = (sums["sum"].to_numpy() - p * count)[inside] / np.sqrt((p * (1 - p) * count)[inside])
        assert (z**2).sum() < inside.sum() + 4 * np.sqrt(2 * inside.sum())  # chi-square, of fixed ids


def test_the_documented_definition_gives_the_decisions(rules: dict[str, Path], new: pd.DataFrame, tmp_path: Path) -> None:
    for folder, column in ((rules["rows"], "image"), (rules["patients"], "patient")):
        found = _applied(folder, new, tmp_path, "--set", "apply.seed=5")
        hashes = [hashlib.sha256(f"5/{key}".encode()).hexdigest() for key in new[column]]
        u = np.array([(int(each[:16], 16) >> 11) / 2**53 for each in hashes])
        assert found["decision"].tolist() == (u < found["probability"]).astype(int).tolist()
        assert says((folder / "README.txt").read_text(), "SHA-256", column)
    images = found.groupby("patient")["probability"].transform("nunique")
    assert found[images == 1].groupby("patient")["decision"].nunique().max() == 1  # rows of one patient share the draw


def test_rows_without_ids_are_refused(rules: dict[str, Path], new: pd.DataFrame, tmp_path: Path) -> None:
    new.to_csv(tmp_path / "new.csv", index=False)
    new.drop(columns=["image", "patient"]).to_csv(tmp_path / "without.csv", index=False)
    new.assign(image=new["image"].where(new.index != 7)).to_csv(tmp_path / "one_empty.csv", index=False)
    for folder, file, count in (("none", "new.csv", "3,000"), ("rows", "without.csv", "3,000"), ("rows", "one_empty.csv", "1")):
        done = ran("apply", rules[folder], tmp_path / file)
        assert (done.code, done.out) == (2, "")
        assert says(done.err, "randomised", "data.id", "--patient", f"{count} of 3,000 rows", file)
    scores = _frame().rename(columns={"p": "score"})
    roles = {"label": "y", "score": "score", "group": "sex", "reference": "M"}
    goal = {"threshold": 0.5, "selection": "paper", "max_loss": 0.5}  # so that the rule is taken
    rule = eq.debias(eq.Scores.from_frame(scores, **roles), method="equalised-odds", **goal).rule
    repaired, test = eq.Scores.from_frame(scores, **roles).hold_out(0.5)
    for rows in (repaired, test):
        with pytest.raises(eq.BadInput, match="randomised"):
            rule.draw(rows, 0)
    numbers = eq.Scores.from_frame(scores.assign(study=np.arange(len(scores))), **roles, id="study")  # ids that are numbers are ids
    texts = eq.Scores.from_frame(scores.assign(study=[str(k) for k in range(len(scores))]), **roles, id="study")
    assert np.array_equal(rule.draw(numbers, 3), rule.draw(texts, 3))
