"""Adversarial fine-tuning: the best epoch by the constrained objective is kept, or the last one, as published."""

import pytest
import torch

from equipoise.errors import BadInput
from equipoise.measures import Cells
from equipoise.methods import METHODS
from equipoise.models import predict
from support.networks import trained
from support.notes import note_of
from support.published import debias

QUICK = {"epochs": 5, "critic_steps": 3, "actor_steps": 12, "learning_rate": 0.01}


def test_the_last_epoch_is_kept_where_it_is_asked_for():
    model, parts = trained("mlp")
    best, last, again = (
        debias(
            model,
            parts.valid,
            method="adversarial-finetune",
            measure="spd",
            max_gap=0.05,
            seed=1,
            restore=restore,
            recalibrate=False,
            **QUICK,
        )
        for restore in ("best", "last", "last")
    )
    assert best.trace.equals(last.trace)  # the same epochs, another choice
    assert best.chosen < last.chosen == 5
    assert note_of(last.why, "last_step").numbers == {"steps": 5}
    assert last.met_in_sample == (abs(last.trace["gap"].iloc[-1]) <= 0.04)  # the maximum gap less a margin of 0.01
    scores = predict(last.model, parts.valid)
    cells = Cells.of(last.rule.decide(scores), scores.y, scores.attribute)
    assert cells.gaps("spd")[0] == pytest.approx(last.trace["gap"].iloc[-1], abs=1e-6)
    assert all(torch.equal(a, b) for a, b in zip(last.model.state_dict().values(), again.model.state_dict().values(), strict=True))
    assert METHODS["adversarial-finetune"].unit(last.settings) == "epochs"
    assert last.pace == 1.0


def test_an_unknown_epoch_is_an_error():
    model, parts = trained("mlp")
    with pytest.raises(BadInput, match="best"):
        debias(model, parts.valid, method="adversarial-finetune", measure="spd", restore="first")
