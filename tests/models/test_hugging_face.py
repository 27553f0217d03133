"""Image classifiers of transformers from a local folder: the same logits as in transformers, and no code or pickle from the folder."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

import equipoise as eq
from equipoise.data import Images
from equipoise.errors import BadInput
from equipoise.models import classifier, load_model, outputs, vision
from equipoise.models.vision import preparation_in

vision.prepare_torchvision()
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


SQUARE, SHORT, CROP = {"height": 18, "width": 16}, {"shortest_edge": 20}, {"height": 15, "width": 15}


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("ViT", {"size": SQUARE}),
        ("ViT", {"size": SQUARE, "resample": 0, "do_rescale": False}),
        ("ConvNext", {"size": {"shortest_edge": 14}}),
        ("ConvNext", {"size": {"shortest_edge": 400}}),
        ("CLIP", {"size": SHORT, "crop_size": CROP}),
        ("EfficientNet", {"size": SQUARE, "rescale_factor": 1 / 127.5, "rescale_offset": True}),
        ("Bit", {"size": SHORT, "crop_size": CROP, "do_normalize": False}),
        ("DeiT", {"size": SQUARE, "crop_size": CROP}),
        ("PoolFormer", {"size": {"shortest_edge": 15}, "crop_size": CROP}),
        ("MobileNetV2", {"size": SHORT, "crop_size": CROP}),
    ],
)
def test_images_are_prepared_as_by_the_preprocessor_of_transformers(tmp_path, family, options):
    rng = np.random.default_rng(0)
    files = []
    for k, shape in enumerate([(45, 35, 3), (36, 49, 3), (25, 26, 3)]):
        files.append(tmp_path / f"{k}.png")
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(files[-1])
    (tmp_path / "config.json").write_text("{}")
    processor = getattr(transformers, f"{family}ImageProcessorPil")(**options)
    processor.save_pretrained(tmp_path)
    wanted = [processor(Image.open(file), return_tensors="np")["pixel_values"][0] for file in files]
    found = Images.open(files, **preparation_in(tmp_path))
    np.testing.assert_allclose(found[:3].numpy(), np.stack(wanted), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"image_processor_type": "LevitImageProcessor"}, "LevitImageProcessor"),
        ({"do_flip_channel_order": True}, "do_flip_channel_order"),
        ({"resample": 5}, "resample 5"),
        ({"auto_map": {}}, "auto_map"),
        ({"do_center_crop": True, "crop_size": {"height": 8, "width": 9}}, "8 x 9"),
        ({"do_center_crop": True}, "crop_size"),
        ({"image_mean": [0.5, 0.5]}, "image_mean"),
        ({"size": None}, "preprocessor_config"),
    ],
)
def test_unsupported_preprocessing_is_refused_by_name(tmp_path, change, fact):
    (tmp_path / "config.json").write_text("{}")
    assert preparation_in(tmp_path) == {}
    plain = {"size": {"height": 8, "width": 8}, "image_mean": [0.5] * 3, "image_std": [0.2] * 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(plain))
    assert preparation_in(tmp_path)["resize"] == (8, 8)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(plain | change))
    with pytest.raises(BadInput, match=fact):
        preparation_in(tmp_path)


def test_an_error_of_the_configuration_is_not_blamed_on_the_preprocessor(tmp_path):
    plain = {"size": {"height": 8, "width": 8}, "image_mean": [0.5] * 3, "image_std": [0.2] * 3}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(plain))
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(BadInput, match=r"config\.json") as error:
        preparation_in(tmp_path)
    assert "preprocessor_config" not in str(error.value)


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
