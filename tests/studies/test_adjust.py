"""Options of the command line are set for the data that have them, and refused if no data do."""

from pathlib import Path

import pytest

from equipoise.errors import BadInput
from equipoise.studies import make_plan, read_plan, with_initial_weights, with_options
from support.facts import facts


def test_options_are_set_for_the_sources_that_have_them() -> None:
    plan = make_plan({"name": "x", "data": ["loh", "phantom", {"source": "nih", "options": {"finding": "mass"}}], "methods": ["standard"]})
    assert with_options(plan, size=None, skip_broken=None) == plan
    changed = with_options(plan, size=32, skip_broken=True)
    assert [d.options for d in changed.data] == [{}, {"size": 32}, {"finding": "mass", "size": 32, "skip_broken": True}]
    with pytest.raises(BadInput, match=facts("mimic_iv", "loh", "phantom", "nih")):
        with_options(plan, mimic_iv="x")


def test_weights_by_backbone(tmp_path: Path) -> None:
    (tmp_path / "w.pth").write_bytes(b"w")
    plan = with_initial_weights(read_plan("nih"), [f"vgg-16={tmp_path / 'w.pth'}"])
    assert plan.network("nih-any-vgg-16").pretrained == str(tmp_path / "w.pth")
    assert plan.network("nih-any-resnet-18").pretrained == ""
    with pytest.raises(BadInput) as caught:
        with_initial_weights(read_plan("nih"), ["densenet-121=none.pth", "vgg=w.pth"])
    assert len(caught.value.problems) == 4
