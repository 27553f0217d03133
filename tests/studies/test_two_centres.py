"""The two centres of the demo: their patients, the errors of the network at the second centre, and the files."""

import sys

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from equipoise.errors import BadInput
from equipoise.models import predict
from equipoise.studies import small_cnn
from equipoise.studies import two_centres as centres


def test_prevalence_is_that_of_the_centre_and_the_seed_determines_the_patients():
    cohort = centres.simulate_xrays(centres.CENTRES[0], 2_000, "one", 3)
    women = cohort.groups == "F"
    assert women.sum() == 500
    assert cohort.y[~women].mean() == pytest.approx(0.5, abs=0.05)
    assert cohort.y[women].mean() == pytest.approx(0.15, abs=0.06)
    assert cohort.patients is not None
    assert 1.2 < 2_000 / len(set(cohort.patients)) < 1.6
    again, other = (centres.simulate_xrays(centres.CENTRES[0], 2_000, "one", seed) for seed in (3, 4))
    assert torch.equal(cohort.inputs, again.inputs)
    assert not torch.equal(cohort.inputs, other.inputs)


def test_patients_have_one_label_and_one_sex_and_are_shuffled():
    cohort = centres.simulate_xrays(centres.CENTRES[1], 400, "two", 0)
    frame = pd.DataFrame({"patient": cohort.patients, "sex": cohort.groups, "y": cohort.y})
    assert frame.groupby("patient")[["sex", "y"]].nunique().to_numpy().max() == 1
    assert (frame["patient"] == frame["patient"].shift()).mean() < 0.05
    assert 0.35 < (frame["sex"] == frame["sex"].shift()).mean() < 0.65


def test_the_network_of_centre_1_misses_more_women_at_centre_2():
    network = centres.train_at_centre_1(1_000, epochs=4)
    scores = predict(network, centres.simulate_xrays(centres.CENTRES[1], 1_000, "two", 0))
    found = scores.score >= network.threshold
    sick, women = scores.y == 1, scores.groups == "F"
    assert found[sick & women].mean() < found[sick & ~women].mean() - 0.1
    assert found[sick].mean() - found[~sick].mean() > 0.3  # and it sees the disease


@pytest.fixture(scope="module")
def hospital(tmp_path_factory):
    """The files of centre 2, with an untrained network."""
    folder = tmp_path_factory.mktemp("hospital")
    torch.manual_seed(0)
    network = small_cnn.build().eval()
    centres.write_hospital(folder, network, 80, new=12, seed=0)
    return folder, network


def test_the_files_are_those_of_a_hospital(hospital):
    folder, _ = hospital
    local, new = pd.read_csv(folder / "local.csv"), pd.read_csv(folder / "new.csv")
    assert list(local.columns) == ["image", "patient_id", "sex", "widened_mediastinum"]
    assert list(new.columns) == ["image", "patient_id", "sex"]
    assert (len(local), len(new)) == (80, 12)
    assert not set(local["patient_id"]) & set(new["patient_id"])
    for name in (*local["image"], *new["image"]):
        with Image.open(folder / "xrays" / name) as image:
            assert (image.size, image.mode) == ((48, 48), "L")


def test_the_scores_are_those_of_the_images_in_the_files(hospital):
    folder, network = hospital
    scores = pd.read_csv(folder / "scores.csv")
    films = np.stack([np.asarray(Image.open(folder / "xrays" / name)) for name in pd.read_csv(folder / "local.csv")["image"]])
    with torch.no_grad():
        expected = torch.sigmoid(network((torch.from_numpy(films).float()[:, None] / 255 - 0.5) / 0.25))[:, 0]
    assert scores["score"].to_numpy() == pytest.approx(expected.numpy(), abs=1e-6)


def test_code_and_weights_do_not_need_equipoise(hospital, monkeypatch):
    folder, network = hospital
    for name in [name for name in sys.modules if name.partition(".")[0] == "equipoise"]:
        monkeypatch.setitem(sys.modules, name, None)  # an import of it would fail
    place: dict[str, object] = {}
    exec((folder / "my_model.py").read_text(), place)
    built = place["build"]()  # type: ignore[operator]
    built.load_state_dict(load_file(folder / "net.safetensors"), strict=True)
    x = torch.randn(3, 1, 48, 48)
    assert torch.equal(built.eval()(x), network(x))


def test_all_wrong_numbers_are_named_at_once():
    with pytest.raises(BadInput) as caught:
        centres.train_at_centre_1(10, epochs=0, seed=-1)
    assert [problem.split()[0] for problem in caught.value.problems] == ["rows", "epochs", "seed"]
