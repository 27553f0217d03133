"""Image classifiers of transformers from a local folder: the same logits as transformers gives, and no code or pickle from the folder."""

import json

import numpy as np
import pytest
import torch

import equipoise as eq
from equipoise.errors import BadInput
from equipoise.models import classifier, load_model, outputs, preparation_in, vision

vision.declare_operators()
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

X = torch.rand(40, 3, 32, 32, generator=torch.Generator().manual_seed(0))
RNG = np.random.default_rng(0)
COHORT = eq.Cohort.from_arrays(X, RNG.integers(0, 2, 40), RNG.choice(["F", "M"], 40), reference="M")


def saved(folder, labels=2, **more):
    torch.manual_seed(0)
    config = transformers.ResNetConfig(embedding_size=4, hidden_sizes=[4, 4], depths=[1, 1], num_labels=labels, **more)
    model = transformers.ResNetForImageClassification(config).eval()
    model.save_pretrained(folder)
    return model


def test_two_labels_are_the_log_odds_of_the_second(tmp_path):
    model = saved(tmp_path)
    with torch.no_grad():
        logits = model(pixel_values=X).logits
    found = load_model(str(tmp_path))
    np.testing.assert_allclose(outputs(found, X), (logits[:, 1] - logits[:, 0]), atol=1e-5)
    want = logits.softmax(1)[:, 1].double().numpy()
    assert eq.audit(tmp_path, COHORT)["spd"].value == eq.audit(eq.Scores.of(COHORT, want), threshold=0.5)["spd"].value
    assert eq.audit(model, COHORT)["spd"].value == eq.audit(tmp_path, COHORT)["spd"].value


def test_several_labels_keep_their_names(tmp_path):
    saved(tmp_path, 3, id2label={0: "Edema", 1: "Effusion", 2: "Mass"})
    assert classifier(str(tmp_path)).targets == ["Edema", "Effusion", "Mass"]


def test_what_the_folder_says_of_the_images(tmp_path):
    (tmp_path / "preprocessor_config.json").write_text(
        json.dumps({"size": {"height": 64, "width": 64}, "image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.2, 0.2]})
    )
    assert preparation_in(tmp_path) == {"size": 64, "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.2)}
    assert preparation_in(tmp_path / "nowhere") == {}


def test_code_pickles_and_other_folders_are_refused(tmp_path):
    saved(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(BadInput, match=r"no model\.safetensors"):
        load_model(str(tmp_path))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "code.Net"}}))
    with pytest.raises(BadInput, match="auto_map"):
        load_model(str(tmp_path))
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(BadInput, match=r"config\.json"):
        load_model(str(tmp_path))
