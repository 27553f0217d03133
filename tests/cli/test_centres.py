"""`equipoise debias north.toml south.toml`: a repair for each centre, and every repair at every centre."""

import json

import numpy as np
import pandas as pd
import pytest

import equipoise as eq
from support.facts import says

CASE = """
[data]
table = "{name}.csv"
label = "sick"
score = "p"
group = "sex"
reference = "M"
patient = "patient"
[model]
threshold = 0.5
[goal]
max_loss = 0.03
selection = "paper"
[repair]
method = "group-thresholds"
recalibrate = false
"""


def patients(name, rows, seed, missed):
    """Scores that are lower for the ill of one sex."""
    rng = np.random.default_rng(seed)
    sex, sick = rng.choice(["F", "M"], rows), rng.integers(0, 2, rows)
    logit = 2.5 * (sick - 0.5) + rng.normal(size=rows) + np.where((sex == missed) & (sick == 1), -1.0, 0)
    score = 1 / (1 + np.exp(-logit))
    return pd.DataFrame({"patient": [f"{name}{k}" for k in range(rows)], "sex": sex, "sick": sick, "p": score.round(6)})


@pytest.fixture
def centres(tmp_path):
    for name, seed, missed in (("north", 1, "F"), ("south", 2, "M")):
        patients(name, 1600, seed, missed).to_csv(tmp_path / f"{name}.csv", index=False)
        (tmp_path / f"{name}.toml").write_text(CASE.format(name=name))
    return tmp_path


def test_every_repair_is_judged_at_every_centre(run, centres):
    """The two centres have opposite gaps, so that the repair of one is worse than none at the other, and the page says so."""
    ran = run("debias", "north.toml", "south.toml", "--out", "both", "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)["changes"]["sick"]
    assert set(found) == {"north", "south"}
    for centre, other in (("north", "south"), ("south", "north")):
        bundle, table = eq.Bundle.load(centres / "both" / other), pd.read_csv(centres / f"{centre}.csv")
        assert bundle.run.method == "group-thresholds"
        gaps = {row["compared"]: row for row in found[centre]["gaps"] if row["measure"] == "eod"}
        assert set(gaps) == {"repair of north", "repair of south"}
        assert abs(gaps[f"repair of {centre}"]["second"]) < abs(gaps[f"repair of {centre}"]["first"]) - 0.05
        assert abs(gaps[f"repair of {other}"]["second"]) > abs(gaps[f"repair of {other}"]["first"]) + 0.02
        # What the folder of the other centre decides here, on all patients: the direction is that on the held-out ones.
        decided = table.assign(d=bundle.decide(table)["decision"].to_numpy())
        rates = decided[decided.sick == 1].groupby("sex")["d"].mean()
        assert rates["F"] - rates["M"] == pytest.approx(gaps[f"repair of {other}"]["second"], abs=0.1)
    page = (centres / "both" / "centres.html").read_text()
    assert says(page, "No repair serves all 2 centres", "repair of north", "repair of south")


def test_the_terminal_shows_each_centre_and_all(run, centres):
    ran = run("debias", "north.toml", "south.toml", "--out", "both")
    assert ran.code == 0, ran.err
    assert says(ran.out, "All centres", "No repair serves all 2 centres", "centres.html")


def test_centres_that_share_patients_or_differ_in_labels_are_refused_before_any_work(run, centres):
    (centres / "again.toml").write_text(CASE.format(name="north") + "seed = 5\n")
    ran = run("debias", "north.toml", "again.toml", "--out", "both")
    assert ran.code == 2
    assert says(ran.err, "north", "again", "patients")
    pd.read_csv(centres / "south.csv").rename(columns={"sick": "ill"}).to_csv(centres / "other.csv", index=False)
    (centres / "other.toml").write_text(CASE.format(name="other").replace('"sick"', '"ill"'))
    ran = run("debias", "north.toml", "other.toml", "--out", "both")
    assert ran.code == 2
    assert says(ran.err, "sick", "ill", "same labels")
    assert not (centres / "both").exists()


def test_options_of_one_case_are_refused_with_several(run, centres):
    ran = run("debias", "north.toml", "south.toml", "--out", "both", "--dry-run", "--choose", "original")
    assert ran.code == 2
    assert says(ran.err, "--dry-run", "--choose", "one case")


def test_networks_of_several_centres_score_the_patients_of_each(run, centres):
    """The weights of one network are changed at each centre, so its scores differ between repairs."""
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    import torch

    from equipoise.models import to_onnx

    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    with torch.no_grad():
        network[0].weight.fill_(3.0)
        network[0].bias.fill_(-1.5)
        network[2].weight.fill_(1.0)
        network[2].bias.zero_()
    to_onnx(network, torch.rand(8, 1), centres / "net.onnx")
    quick = "\n[bias-gda]\nmax_steps = 3\n[report]\nonnx = false\n"
    for name in ("north", "south"):
        text = CASE.format(name=name).replace('score = "p"', 'features = ["p"]').replace("[model]", '[model]\nload = "net.onnx"')
        (centres / f"{name}.toml").write_text(text.replace("group-thresholds", "bias-gda") + quick)
    ran = run("debias", "north.toml", "south.toml", "--out", "both", "--json")
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["failures"] == {}
    for centre in ("north", "south"):
        names = {row["compared"] for row in found["changes"]["sick"][centre]["gaps"]}
        assert names == {"repair of north", "repair of south"}
