"""Verification of a bundle: damaged, mixed-up, unlisted or invalid files are rejected, and no code runs without a request."""

import json
import os
import random
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from equipoise.case import Bundle
from equipoise.case import verify as subject
from equipoise.case.folder import filling
from equipoise.case.schema import sealed
from equipoise.case.verify import read_run, verify
from equipoise.data import Cohort
from equipoise.disk import sha256
from equipoise.errors import BadInput, Untrusted
from equipoise.measures import Threshold
from equipoise.methods import rule_to_dict
from equipoise.methods.equalised_odds import EqualisedOdds, Steps
from equipoise.methods.reject_option import RejectOption
from equipoise.methods.rules import rule_from_dict
from equipoise.methods.thresholds import GroupThresholds
from support import bundles
from support.facts import facts, says

X = torch.tensor([[1.0, -2.0, 0.5], [0.0, 1.0, 3.0]])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return bundles.write(tmp_path / "repaired")


def test_a_complete_folder_is_served_as_written(folder: Path):
    repaired = Bundle.load(folder, trust=True)
    with torch.no_grad():
        expected = torch.sigmoid(bundles.network()(X)[:, 0].double()).numpy()
    np.testing.assert_allclose(repaired.score(X), expected, atol=1e-12)
    assert repaired.rule == Threshold(0.5)
    (folder / "thesis.txt").write_text("years of work")  # a user's file is no part of the bundle
    assert verify(folder).run.label == "sick"


@pytest.mark.parametrize("name", ["run.json", "rule.json"])
def test_a_json_document_far_larger_than_those_of_a_bundle_is_not_read(folder: Path, name: str):
    with (folder / name).open("ab") as file:
        file.truncate(2**26 + 1)
    with pytest.raises(BadInput) as error:
        verify(folder)
    assert says(str(error.value), name, "67,108,865")


# 1. Checksums


@pytest.mark.parametrize("name", ["run.json", "rule.json", "audit.json", "repaired.safetensors", "report.html"])
def test_every_changed_byte_is_rejected(folder: Path, name: str):
    path, rng = folder / name, random.Random(0)
    content = path.read_bytes()
    for at in range(len(content)) if len(content) < 400 else sorted(rng.sample(range(len(content)), 300)):
        changed = bytearray(content)
        changed[at] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        with pytest.raises(BadInput, match=re.escape(name)):
            verify(folder)
    for change in (content[:-1], content + b" ", content[1:], b"", content[: len(content) // 2]):
        path.write_bytes(change)
        with pytest.raises(BadInput):
            verify(folder)
    path.write_bytes(content)
    verify(folder)


def test_files_of_two_runs_are_rejected(tmp_path: Path):
    one, other = bundles.write(tmp_path / "one"), bundles.write(tmp_path / "other", rule=Threshold(0.75), seed=1)
    for name in ("rule.json", "repaired.safetensors"):
        content = (one / name).read_bytes()
        (one / name).write_bytes((other / name).read_bytes())
        with pytest.raises(BadInput, match=facts(name)):
            Bundle.load(one, trust=True)
        (one / name).write_bytes(content)


def test_a_folder_that_is_replaced_while_it_is_read_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out, other = bundles.write(tmp_path / "out"), bundles.write(tmp_path / "other", rule=Threshold(0.75), seed=1)
    original, swapped = subject._read_listed, []

    def replaced_first(folder: Path, run: dict[str, Any]) -> tuple[dict[str, bytes], list[str]]:
        if not swapped:
            swapped.append(1)
            with filling(out) as place:
                for path in other.iterdir():
                    (place / path.name).write_bytes(path.read_bytes())
        return original(folder, run)

    monkeypatch.setattr(subject, "_read_listed", replaced_first)
    found = Bundle.load(out, trust=True)
    assert (found.rule, swapped) == (Threshold(0.75), [1])
    assert torch.equal(found.model.weight, bundles.network(1).weight)


def test_a_folder_that_is_briefly_moved_away_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    out = bundles.write(tmp_path / "out")
    original, calls = subject.read_run, []

    def away_first(folder: Path) -> dict[str, Any]:
        calls.append(1)
        if len(calls) > 1:
            return original(folder)
        out.rename(tmp_path / "aside")  # as where two folders cannot be exchanged in one step
        try:
            return original(folder)
        finally:
            (tmp_path / "aside").rename(out)

    monkeypatch.setattr(subject, "read_run", away_first)
    assert Bundle.load(out, trust=True).rule is not None


@pytest.mark.parametrize("name", ["run.json", "rule.json", "repaired.safetensors"])
def test_a_file_larger_than_memory_is_rejected(folder: Path, name: str):
    os.truncate(folder / name, 2**43)  # a sparse file, which takes no space on the disk
    with pytest.raises(BadInput, match=name):
        Bundle.load(folder, trust=True)


def test_thousands_of_damaged_bytes_in_the_weights_are_refused_before_they_are_parsed(folder: Path, monkeypatch: pytest.MonkeyPatch):
    big = np.random.default_rng(0).bytes(8000)
    (folder / "model.onnx").write_bytes(big)
    bundles.seal(folder, bundles.run_of(folder))
    verify(folder)
    (folder / "model.onnx").write_bytes(big[:4000] + bytes(4000))
    weights = folder / "repaired.safetensors"
    weights.write_bytes(weights.read_bytes()[::-1])
    monkeypatch.setattr("equipoise.models.export.safetensors_in", lambda *_: pytest.fail("it was parsed"))
    with pytest.raises(BadInput) as caught:
        Bundle.load(folder, trust=True)
    assert says(caught.value, "model.onnx", "repaired.safetensors")


@pytest.mark.parametrize("name", ["repaired.pt2", "heads.safetensors", "model.onnx", "repaired.pt"])
def test_a_file_that_is_not_listed_is_rejected(folder: Path, name: str):
    (folder / name).write_bytes(b"PK")
    with pytest.raises(BadInput, match=facts(name, "run.json")):
        Bundle.load(folder, trust=True)


# 2. Schemas: each document gets a new digest, so that only the schema is violated


def _without(*keys: str) -> Callable[[dict[str, Any]], None]:
    def change(run: dict[str, Any]) -> None:
        place = run
        for key in keys[:-1]:
            place = place[key]
        del place[keys[-1]]

    return change


def _with(value: object, *keys: str) -> Callable[[dict[str, Any]], None]:
    def change(run: dict[str, Any]) -> None:
        place = run
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return change


RUNS = {
    "another output": (_with("Logit", "model", "output"), ["model.output", "'Logit'"]),
    "no output": (_without("model", "output"), ["model.output"]),
    "no model": (_without("model"), ["model"]),
    "inputs that are a number": (_with(1, "inputs"), ["inputs", "1"]),
    "no inputs": (_without("inputs"), ["inputs"]),
    "no features": (_without("inputs", "features"), ["inputs", "features"]),
    "images that are a list": (_with([1], "inputs", "images"), ["inputs.images"]),
    "bins without an end": (_with({"age": {"edges": [40, None], "whole": True}}, "inputs", "bins"), ["inputs.bins.age.edges.1"]),
    "bins that do not ascend": (_with({"age": {"edges": [60, 40], "whole": True}}, "inputs", "bins"), ["inputs.bins.age", "ascend"]),
    "an input of the future": (_with(1, "inputs", "surprise"), ["inputs.surprise"]),
    "groups of groups": (_with([["sex"]], "inputs", "group"), ["inputs", "group"]),
    "no groups": (_with([], "inputs", "group"), ["inputs", "group"]),
    "heads that are a list": (_with([1], "heads"), ["heads"]),
    "a version of the future": (_with(99, "schema_version"), ["schema_version 99"]),
    "a version before checksums": (_with(1, "schema_version"), ["schema_version 1", "debias"]),
    "another schema": (_with("other", "schema"), ["schema"]),
    "a key too many": (_with(1, "surprise"), ["surprise"]),
    "a seed in words": (_with("zero", "provenance", "seed"), ["provenance.seed"]),
    "a truth that is a number": (_with(1, "met"), ["met"]),
}


@pytest.mark.parametrize("case", RUNS)
def test_an_invalid_run_json_gives_one_message_with_the_key(folder: Path, case: str):
    change, expected = RUNS[case]
    run = bundles.run_of(folder)
    change(run)
    bundles.seal(folder, run)
    with pytest.raises(BadInput) as caught:
        Bundle.load(folder, trust=True)
    assert "run.json" in str(caught.value)
    for part in expected:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, "rule.json"),
        ({"../net.py": "0" * 64}, "../net.py"),
        ({"rule.json": "0" * 64, "audit.json": "0" * 64, "repaired.safetensors": "short"}, "files.repaired.safetensors"),
        (["rule.json"], "files"),
    ],
)
def test_the_list_of_files_is_checked(folder: Path, files: object, expected: str):
    run = {key: value for key, value in bundles.run_of(folder).items() if key != "digest"}
    (folder / "run.json").write_text(sealed({**run, "files": files}))
    with pytest.raises(BadInput, match=re.escape(expected)):
        read_run(folder)


@pytest.mark.parametrize("content", [b"", b"[]", b"1", b"null", b"{", b"\xff\xfe", b'{"schema": NaN}', b"[" * 100_000, b"9" * 5000])
def test_a_file_that_is_no_run_json_is_rejected(folder: Path, content: bytes):
    (folder / "run.json").write_bytes(content)
    with pytest.raises(BadInput, match=r"run\.json"):
        read_run(folder)


RULES = {
    "threshold": Threshold(0.25, "given"),
    "nobody": Threshold(float(np.nextafter(1.0, 2.0)), "given"),
    "reject-option": RejectOption(0.5, 0.125, ("F",), ("M", "F")),
    "group-thresholds": GroupThresholds(("M", "F"), (0.25, 0.5), 0.375, "given"),
    "equalised-odds": EqualisedOdds(("M", "F"), (Steps((0.5,), (0.0, 1.0)), Steps((0.25, 0.75), (0.0, 0.5, 1.0))), (0.5, 0.5)),
}


@pytest.mark.parametrize("kind", RULES)
def test_every_rule_is_restored_from_its_plain_values(kind: str):
    plain = json.loads(json.dumps(rule_to_dict(RULES[kind])))
    assert rule_from_dict(plain) == RULES[kind]
    for key in set(plain) - {"schema", "schema_version", "kind"}:
        with pytest.raises(BadInput, match=key):
            rule_from_dict({name: value for name, value in plain.items() if name != key})


@pytest.mark.parametrize("value", [1e30, -1e-9, 1.1, float("inf"), float("-inf"), float("nan"), None, "0.5", True, [0.5]])
@pytest.mark.parametrize(
    ("kind", "key"), [("threshold", "value"), ("reject-option", "threshold"), ("reject-option", "margin"), ("group-thresholds", "missing")]
)
def test_an_impossible_threshold_is_rejected(kind: str, key: str, value: object):
    with pytest.raises(BadInput, match=f"rule.json.*{key}"):
        rule_from_dict({**rule_to_dict(RULES[kind]), key: value})


@pytest.mark.parametrize(
    ("kind", "change", "expected"),
    [
        ("group-thresholds", {"thresholds": [0.5]}, "1 `thresholds` for 2 `groups`"),
        ("group-thresholds", {"thresholds": [0.5, float("-inf")]}, "thresholds.1"),
        ("group-thresholds", {"groups": "MF"}, "groups"),
        ("group-thresholds", {"groups": ["M", "M"]}, "twice"),
        ("reject-option", {"favoured": ["X"]}, "favours X"),
        ("reject-option", {"groups": [1, 2]}, "groups.0"),
        ("equalised-odds", {"shares": [0.5, 0.9]}, "add up to 1.4"),
        ("equalised-odds", {"shares": [0.5]}, "1 `shares`"),
        ("equalised-odds", {"steps": [{"thresholds": [0.5], "probabilities": [0.0]}] * 2}, "steps.0"),
        ("equalised-odds", {"steps": [{"thresholds": [0.5, 0.1], "probabilities": [0.0, 1.0, 1.0]}] * 2}, "ascend"),
        ("equalised-odds", {"randomised": False}, "randomised"),
        ("threshold", {"needs_group": True}, "needs_group"),
        ("threshold", {"kind": "thresholdd"}, "thresholdd"),
        ("threshold", {"extra": 1}, "extra"),
    ],
)
def test_an_invalid_rule_is_rejected_with_the_key(kind: str, change: dict[str, object], expected: str):
    with pytest.raises(BadInput, match=re.escape(expected)):
        rule_from_dict({**rule_to_dict(RULES[kind]), **change})


# 3. Code runs on request only


def test_code_is_shown_and_not_run(folder: Path):
    code = folder.parent / "net.py"
    with pytest.raises(Untrusted) as caught:
        Bundle.load(folder)
    assert str(code) in str(caught.value)
    assert sha256(code.read_bytes()) in str(caught.value)
    code.write_text("raise SystemExit('it was run')")
    for trust in (False, True):
        with pytest.raises(Untrusted, match="changed"):
            Bundle.load(folder, trust=trust)


def test_a_program_in_the_folder_is_code(folder: Path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = ({0: torch.export.Dim.DYNAMIC},)
        torch.export.save(torch.export.export(bundles.network().eval(), (X,), dynamic_shapes=rows), folder / "repaired.pt2")
    run = bundles.run_of(folder)
    run["model"]["load"] = "/elsewhere/net.pt2"
    bundles.seal(folder, run)
    with pytest.raises(Untrusted, match=facts("repaired.pt2")):
        Bundle.load(folder)
    expected = Bundle.load(folder, model=f"{folder.parent / 'net.py'}:build").score(X)
    for asked in ({"trust": True}, {"model": str(folder / "repaired.pt2")}):
        np.testing.assert_allclose(Bundle.load(folder, **asked).score(X), expected, atol=1e-12)


def test_an_installed_module_needs_trust_and_a_backbone_does_not(folder: Path):
    run = bundles.run_of(folder)
    run["model"] |= {"load": "torch.nn.modules.linear:Identity"}
    run["model"]["code"]["sha256"] = sha256(Path(torch.nn.modules.linear.__file__).read_bytes())
    bundles.seal(folder, run)
    with pytest.raises(Untrusted, match=facts("torch.nn.modules.linear")):
        Bundle.load(folder)
    with pytest.raises(BadInput, match="network"):  # it was run
        Bundle.load(folder, trust=True)
    run["model"] |= {"load": "squeezenet", "code": None}
    bundles.seal(folder, run)
    with pytest.raises(BadInput, match="weights"):
        Bundle.load(folder)


@pytest.mark.parametrize("name", ["--5", "\u00b2", "9" * 5000])
def test_an_output_name_that_looks_like_a_number_is_rejected(folder: Path, name: str):
    document = json.loads((folder / "run.json").read_text())
    document.pop("digest")
    document["model"]["output_name"] = name
    (folder / "run.json").write_text(sealed(document))
    with pytest.raises(BadInput, match="output"):
        Bundle.load(folder, trust=True)


@pytest.mark.parametrize("outcome", ["harm", "closed", "unclear"])
@pytest.mark.parametrize("forced", [False, True])
def test_a_repair_that_did_harm_or_was_forced_is_reported_before_its_decisions(folder, caplog, outcome, forced):
    bundles.seal(folder, {**bundles.run_of(folder), "outcome": outcome, "forced": forced})
    bundle = Bundle.load(folder, trust=True)
    assert (bundle.outcome, bundle.forced) == (outcome, forced)
    rows = pd.DataFrame({"pid": ["p", "p"], "a": [0.1, 0.2], "b": 0.0, "c": 0.0})
    assert len(bundle.decide(rows)) == 2
    assert len(bundle.decide(Cohort.from_arrays(torch.zeros(2, 3), [0, 1], ["F", "M"]))) == 2
    found = [record.getMessage() for record in caplog.records]
    assert len(found) == 2 * ((outcome == "harm") + forced)
    assert ("harm: do not use" in found[0]) == (outcome == "harm") if found else outcome != "harm"
    assert sum("too few patients" in text for text in found) == 2 * forced
