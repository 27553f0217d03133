"""The preprocessing of images in run.json, and the conditions under which the code of a transform runs."""

import json
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from equipoise.case import bundle
from equipoise.case.schema import IMAGES_FORMAT, ServedImages
from equipoise.data import Transform
from equipoise.disk import sha256
from equipoise.errors import BadInput, Untrusted
from support.facts import facts

CODE = "import torch\n\ndef transform(image):\n    return torch.zeros(1, 4, 4)\n"
OPTIONS = {"resize": 80, "crop": 64, "interpolation": "bilinear", "channels": 1, "mean": [0.5], "std": [0.25], "preset": None}


@pytest.fixture
def how(tmp_path) -> dict:
    (tmp_path / "prepare.py").write_text(CODE)
    recorded = {"named": "prepare.py:transform", "path": str(tmp_path / "prepare.py"), "sha256": sha256(CODE.encode())}
    return {"transform": recorded, "channels": None}


def _valid(document: dict) -> ServedImages:
    return IMAGES_FORMAT.validate_json(json.dumps(document))


def transform_to_serve(document: dict, *how: object) -> Transform | None:
    return bundle.transform_to_serve(_valid(document), *how)


def test_options_or_a_transform_are_valid_and_nothing_else(how):
    _valid(OPTIONS)
    _valid(how)
    for wrong in (
        {**OPTIONS, "crop": "round"},
        {**OPTIONS, "resize": 0},
        {**OPTIONS, "std": [0.0]},
        {**OPTIONS, "interpolation": None},
        {**how, "crop": 64},
        {"channels": 1},
    ):
        with pytest.raises(ValidationError):
            _valid(wrong)


def test_options_open_images_and_a_transform_replaces_them(how):
    assert _valid(OPTIONS).options() == {key: value for key, value in OPTIONS.items() if key != "preset"} | {"transform": None}
    assert transform_to_serve(OPTIONS, Path("repaired"), None, False, None) is None
    with pytest.raises(BadInput, match=facts("repaired", "images.transform")):
        transform_to_serve(OPTIONS, Path("repaired"), "prepare.py:transform", False, None)


def test_code_runs_if_it_is_named_or_trusted_and_unchanged(how, tmp_path):
    folder, named = Path("repaired"), f"{tmp_path / 'prepare.py'}:transform"
    with pytest.raises(Untrusted, match=facts(how["transform"]["sha256"], "--trust")):
        transform_to_serve(how, folder, None, False, None)
    shown: list[object] = []
    for given, trust in ((None, True), (named, False)):
        found = transform_to_serve(how, folder, given, trust, shown.append)
        assert found is not None
        assert torch.equal(found.function(None), torch.zeros(1, 4, 4))
    assert len(shown) == 1  # code that the folder names is shown before it runs
    (tmp_path / "prepare.py").write_text(CODE + "#")
    for given, trust in ((None, True), (named, False)):
        with pytest.raises(Untrusted, match=facts("changed", how["transform"]["sha256"])):
            transform_to_serve(how, folder, given, trust, None)
    (tmp_path / "prepare.py").unlink()
    with pytest.raises(BadInput, match=facts("no longer exists", "images.transform=file.py:transform")):
        transform_to_serve(how, folder, None, True, None)


def test_a_python_callable_must_be_given_again(how):
    unnamed = {"transform": {"named": "<lambda>", "path": None, "sha256": ""}, "channels": 3}
    _valid(unnamed)
    with pytest.raises(BadInput, match=facts("Python", "transform=")):
        transform_to_serve(unnamed, Path("repaired"), None, True, None)
    found = transform_to_serve(unnamed, Path("repaired"), lambda image: image, False, None)
    assert found is not None
    assert _valid(unnamed).options(found) == {"channels": 3, "transform": found}
