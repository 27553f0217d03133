"""Calls with the wrong kind of thing: one clear error of ours that names the right call, never one from inside."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import equipoise as eq
from equipoise.errors import EquipoiseError

FRAME = pd.DataFrame(
    {"y": [0, 1] * 20, "p": np.linspace(0, 1, 40), "sex": ["F", "F", "M", "M"] * 10, "x": np.linspace(0, 1, 40), "pid": np.arange(40) // 2}
)
COLUMNS = {"label": "y", "group": "sex"}
SCORES = eq.Scores.from_frame(FRAME, score="p", **COLUMNS)
COHORT = eq.Cohort.from_frame(FRAME, features=["x"], **COLUMNS)
PARTS = eq.split(COHORT)
NET = torch.nn.Linear(1, 1)
RULE = eq.debias(SCORES, method="group-thresholds", selection="paper")
DATASET = TensorDataset(torch.zeros(3, 1))

WRONG = {  # a call: what the message must name
    "split scores": (lambda: eq.split(SCORES), ["Scores", "eq.audit(scores)"]),
    "split a frame": (lambda: eq.split(FRAME), ["DataFrame", "eq.Cohort.from_frame"]),
    "split parts": (lambda: eq.split(PARTS), ["Parts", "parts.train"]),
    "split a network": (lambda: eq.split(NET), ["Linear", "eq.Cohort.from_frame"]),
    "arrays of a data set": (lambda: eq.Cohort.from_arrays(DATASET), ["TensorDataset", "from_dataset", "from_arrays(inputs, y, groups)"]),
    "arrays of a loader": (lambda: eq.Cohort.from_arrays(DataLoader(DATASET)), ["DataLoader", "from_dataset"]),
    "arrays of a loader with labels": (lambda: eq.Cohort.from_arrays(DataLoader(DATASET), [0, 1], ["a", "b"]), ["DataLoader"]),
    "arrays of a frame": (lambda: eq.Cohort.from_arrays(FRAME, FRAME.y, FRAME.sex), ["DataFrame", "eq.Cohort.from_frame"]),
    "arrays without groups": (lambda: eq.Cohort.from_arrays([[1.0]], [1]), ["from_arrays(inputs, y, groups)"]),
    "arrays of words": (lambda: eq.Cohort.from_arrays(["a"] * 40, FRAME.y, FRAME.sex), ["array of numbers"]),
    "scores of a frame's arrays": (lambda: eq.Scores.from_arrays(FRAME), ["DataFrame", "eq.Scores.from_frame"]),
    "scores of a cohort's arrays": (lambda: eq.Scores.from_arrays(COHORT, FRAME.p, FRAME.sex), ["Cohort", "eq.Scores.of(cohort, score)"]),
    "audit a frame": (lambda: eq.audit(FRAME), ["DataFrame", "eq.Scores.from_frame"]),
    "audit a network alone": (lambda: eq.audit(NET), ["eq.audit(model, parts.test)"]),
    "audit a cohort alone": (lambda: eq.audit(COHORT), ["Cohort", "eq.audit(model, cohort)"]),
    "audit the wrong way round": (lambda: eq.audit(COHORT, NET), ["Cohort", "network comes first"]),
    "audit on parts": (lambda: eq.audit(NET, PARTS), ["Parts", "parts.test"]),
    "audit on a frame": (lambda: eq.audit(NET, FRAME), ["DataFrame", "eq.Cohort.from_frame"]),
    "audit on scores": (lambda: eq.audit(NET, SCORES), ["Scores", "eq.audit(scores)"]),
    "audit scores on a cohort": (lambda: eq.audit(SCORES, COHORT), ["eq.audit(scores)"]),
    "audit a file": (lambda: eq.audit("scores.csv"), ["str", "eq.scan", "equipoise audit"]),
    "audit nothing": (lambda: eq.audit(None), ["NoneType"]),
    "a frame to choose a threshold": (lambda: eq.audit(SCORES, valid=FRAME), ["valid", "DataFrame"]),
    "a cohort to choose a threshold of scores": (lambda: eq.audit(SCORES, valid=COHORT), ["valid=eq.Scores.from_frame"]),
    "a word as threshold": (lambda: eq.audit(SCORES, threshold="best"), ["threshold", "'best'"]),
    "a percentage as threshold": (lambda: eq.audit(SCORES, threshold=30), ["threshold", "between 0 and 1", "30"]),
    "no number as threshold": (lambda: eq.audit(SCORES, threshold=float("nan")), ["threshold", "nan"]),
    "audit a rule for scores on a cohort": (lambda: eq.audit(RULE, COHORT), ["Cohort", "eq.audit(result, scores)"]),
    "audit a rule for scores alone": (lambda: eq.audit(RULE), ["eq.audit(result, scores)"]),
    "debias without rows": (lambda: eq.debias(NET), ["eq.debias(model, parts.valid)"]),
    "debias the wrong way round": (lambda: eq.debias(COHORT, NET), ["Cohort", "network comes first"]),
    "debias on a frame": (lambda: eq.debias(NET, FRAME), ["DataFrame", "eq.Cohort.from_frame"]),
    "debias on parts": (lambda: eq.debias(NET, PARTS), ["Parts", "parts.valid"]),
    "debias on scores": (lambda: eq.debias(NET, SCORES), ["Scores"]),
    "train on a frame": (lambda: eq.train(FRAME), ["DataFrame", "eq.Cohort.from_frame"]),
    "train on one part": (lambda: eq.train(COHORT), ["eq.train(parts.train, parts.valid)"]),
    "train on parts": (lambda: eq.train(PARTS), ["Parts", "parts.train"]),
    "train on a network": (lambda: eq.train(PARTS.train, NET), ["Linear"]),
    "scores of a cohort": (lambda: eq.Scores.from_frame(COHORT, score="p", **COLUMNS), ["Cohort", "eq.Scores.of"]),
    "scores of a file": (lambda: eq.Scores.from_frame("scores.csv", score="p", **COLUMNS), ["str", "pd.read_csv", "dtype"]),
    "a cohort of scores": (lambda: eq.Cohort.from_frame(SCORES, **COLUMNS), ["Scores", "eq.audit(scores)"]),
    "a cohort of a dict": (lambda: eq.Cohort.from_frame({"y": [1]}, **COLUMNS), ["dict", "pd.DataFrame"]),
    "images of a file": (lambda: eq.Cohort.from_images("a.csv", folder=".", image="i", **COLUMNS), ["str", "pd.read_csv"]),
    "scores of a network": (lambda: eq.Scores.of(NET, COHORT), ["Linear", "Scores.of(cohort, score)"]),
    "words as scores": (lambda: eq.Scores.of(COHORT, ["a"] * 40), ["numbers in [0, 1]"]),
    "a column in place of its name": (lambda: eq.Scores.from_frame(FRAME, label=FRAME.y, score="p", group="sex"), ["label", "Series"]),
    "no group": (lambda: eq.Scores.from_frame(FRAME, label="y", score="p", group=None), ["no group column"]),
    "bins of no column": (lambda: eq.Scores.from_frame(FRAME, score="p", bins=40, **COLUMNS), ["bins", "{'age': [40", "40"]),
    "bins of another column": (lambda: eq.Scores.from_frame(FRAME, score="p", bins="age=40", **COLUMNS), ["bins", "'age'", "group column"]),
    "an unknown rule": (lambda: eq.Scores.from_frame(FRAME, score="p", conflicts="last", **COLUMNS), ["'last'", "majority"]),
    "conflicts without patients": (lambda: eq.Scores.from_frame(FRAME, score="p", conflicts="first", **COLUMNS), ["patient"]),
    "load a file": (lambda: eq.load("scores.csv"), ["scores.csv", "eq.Cohort.from_frame"]),
    "load a frame": (lambda: eq.load(FRAME), ["DataFrame", "eq.Cohort.from_frame"]),
}


@pytest.mark.parametrize("call", WRONG)
def test_a_wrong_call_names_the_right_one(call: str):
    act, named = WRONG[call]
    with pytest.raises(EquipoiseError) as caught:
        act()
    assert [name for name in named if name not in str(caught.value)] == []
