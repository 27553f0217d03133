"""The chest X-ray studies: settings as in the paper, and whole runs on trees of tiny images."""

import json
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pandas as pd
import pytest
import torch

from equipoise.errors import BadInput
from equipoise.methods import METHODS
from equipoise.methods.baselines import fresh
from equipoise.models.vision import import_torchvision
from equipoise.studies import (
    Event,
    StudyFolder,
    balanced_parts,
    make_plan,
    narrow,
    read_plan,
    read_rows,
    read_timings,
    run_study,
    with_initial_weights,
    with_options,
)
from equipoise.studies.networks import Network
from equipoise.studies.plan import StudyData, tasks_of
from equipoise.studies.run import TasksFailed, _Run
from equipoise.studies.worker import _made_parts
from support.facts import facts


def test_settings_of_the_paper() -> None:
    plan = read_plan("paper-mimic-cxr")
    assert (plan.splits, plan.measures, plan.fractions, plan.privileged) == (20, ("eod",), (0.5, 0.25, 0.25), (0.75, 0.5, 0.5))
    assert (plan.protocol, plan.keep_networks) == ("balanced", False)
    assert plan.training == {
        **{"epochs": 20, "batch": 32, "learning_rate": 1e-4, "patience": 20},
        **{"optimiser": "adamw", "schedule": "step", "step": 5, "augment": True},
    }
    assert all(plan.network(d.name).pretrained == "imagenet" for d in plan.data)
    options = {d.published: (plan.network(d.name).model, d.options["finding"]) for d in plan.data}
    assert options == {
        "mimic-cxr/sex/vgg-16": ("vgg-16", "enlarged cardiomediastinum"),
        "mimic-cxr/ethnicity/vgg-16": ("vgg-16", "pneumonia"),
        "mimic-cxr/sex/resnet-18": ("resnet-18", "enlarged cardiomediastinum"),
        "mimic-cxr/ethnicity/resnet-18": ("resnet-18", "pneumonia"),
    }
    sex, ethnicity = "mimic-cxr-sex-vgg-16", "mimic-cxr-ethnicity-resnet-18"
    prune, gda, adversarial = (plan.arm(name) for name in ("pruning", "bias-gda", "adversarial-finetune"))
    assert prune.settings_for(sex) == {"units": 1500, "max_steps": 10, "stop_below": 0.55, "layers": "features.*"}
    assert prune.settings_for(ethnicity) == {"units": 1500, "max_steps": 10, "stop_below": 0.55, "layers": "conv1"}
    assert gda.settings_for(sex) == {"schedule": "paper", "learning_rate": 1e-5, "batch": 32, "epochs": 10, "evals_per_epoch": 5}
    assert gda.settings_for(ethnicity) == {"schedule": "paper", "learning_rate": 7.5e-6, "batch": 32, "epochs": 8, "evals_per_epoch": 8}
    in_processing = plan.arm("adversarial-training").settings_for(sex)
    assert in_processing == {"learning_rate": 1e-4, "batch": 32, "epochs": 20, "weight": 0.5, "optimiser": "adamw"}
    bounds = {a: [plan.arm(a).goal(d, "eod", plan.performance).max_gap for d in (sex, ethnicity)] for a in ("random", "reject-option")}
    assert bounds == {"random": [0.03, 0.05], "reject-option": [0.03, 0.05]}
    assert adversarial.settings_for(sex) == {"schedule": "paper", "learning_rate": 1e-4, "epochs": 5, "max_gap": 0.03, "margin": 0.02}
    assert adversarial.settings_for(ethnicity) == {"schedule": "paper", "learning_rate": 1e-4, "epochs": 4, "max_gap": 0.05, "margin": 0.01}
    goals = [arm.goal(data, "eod", plan.performance) for arm in (prune, gda, adversarial) for data in (sex, ethnicity)]
    assert [(goal.min_performance, goal.max_gap) for goal in goals] == [
        (0.65, None),
        (0.55, None),
        (0.75, None),
        (0.55, None),
        (None, 0.03),
        (None, 0.05),
    ]


@pytest.fixture(scope="module")
def torch_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder instead of TORCH_HOME, with random weights under the file name of torchvision's ResNet-18."""
    home = tmp_path_factory.mktemp("torch")
    torchvision = import_torchvision()
    place = home / "hub" / "checkpoints" / str(torchvision.models.ResNet18_Weights.IMAGENET1K_V1.url).rpartition("/")[2]
    place.parent.mkdir(parents=True)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        torch.save(torchvision.models.resnet18(weights=None).state_dict(), place)
    return home


@pytest.fixture
def hub(torch_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of those weights, in the place where torchvision looks for them."""
    monkeypatch.setenv("TORCH_HOME", str(torch_home))
    return next(torch_home.glob("hub/checkpoints/*"))


def test_torchvisions_own_loader_finds_the_weights_in_its_cache(hub: Path) -> None:
    network = read_plan("paper-mimic-cxr").network("mimic-cxr-sex-resnet-18")
    model = network.build((4, 1, 32, 32), seed=0)
    saved = torch.load(hub, weights_only=True)
    assert torch.equal(model.get_parameter("layer1.0.conv1.weight"), saved["layer1.0.conv1.weight"])
    assert torch.allclose(model.get_parameter("conv1.weight")[:, 0], saved["conv1.weight"].sum(1), atol=1e-6)
    again = fresh(model, 0)  # adversarial training starts from them too
    assert torch.equal(again.get_parameter("layer4.1.conv2.weight"), saved["layer4.1.conv2.weight"])
    network.fetch()


def test_unavailable_weights_stop_the_study_before_it_starts(xrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "empty"))
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))

    def unreachable(*_: object, **__: object) -> None:
        raise URLError("no route to host")

    monkeypatch.setattr("torch.hub.download_url_to_file", unreachable)
    plan = narrow(read_plan("paper-mimic-cxr"), data=["mimic-cxr-sex-resnet-18"], methods=["standard"], splits=1)
    with pytest.raises(BadInput, match=facts("resnet-18", "--no-pretrained")):
        run_study(with_options(plan, size=32), tmp_path / "out", runner="serial", root=xrays)
    assert not list((tmp_path / "out").glob("models/*"))


def test_no_pretrained_starts_every_network_from_random_weights() -> None:
    plan = with_initial_weights(read_plan("paper-mimic-cxr"), None)
    assert {plan.network(d.name).pretrained for d in plan.data} == {""}


def test_the_study_of_the_paper_runs_with_its_settings(xrays: Path, hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a tiny tree, from weights in torch's cache. Only epochs, the turns of critic and actor, and the trials of random are fewer."""
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path / "cache"))
    name = "mimic-cxr-ethnicity-resnet-18"
    plan = narrow(read_plan("paper-mimic-cxr"), data=[name], splits=1)
    fewer = {
        "adversarial-finetune": {"epochs": 1, "critic_steps": 2, "actor_steps": 2},
        "adversarial-training": {"epochs": 1},
        "bias-gda": {"epochs": 2},
        "random": {"trials": 2},
    }
    arms = [arm.changed(overrides={name: {**arm.settings_for(name), **fewer.get(arm.name, {})}}) for arm in plan.methods]
    plan = with_options(plan.changed(methods=arms, training={**plan.training, "epochs": 1}), size=16)
    rows = read_rows(run_study(plan, tmp_path / "out", runner="serial", root=xrays)).set_index("method")
    assert set(rows.index) == {arm.name for arm in plan.methods}
    assert rows["performance"].between(0, 1).all()
    assert 1 <= rows.loc["pruning", "steps"] <= 11  # the original and ten steps
    settings = {name: json.loads(text) for name, text in rows["settings"].items()}
    assert (settings["bias-gda"]["evals_per_epoch"], settings["bias-gda"]["learning_rate"]) == (8, 7.5e-6)
    assert (settings["adversarial-training"]["optimiser"], settings["adversarial-training"]["weight"]) == ("adamw", 0.5)
    assert settings["adversarial-finetune"]["learning_rate"] == 1e-4


def test_the_nih_study_has_the_same_settings_without_min_performance() -> None:
    plan = read_plan("nih")
    assert len(plan.data) == 9
    assert {(plan.network(d.name).model, d.options["finding"]) for d in plan.data} == {
        (n, f) for n in ("resnet-18", "vgg-16", "squeezenet") for f in ("any", "effusion", "atelectasis")
    }
    prune = plan.arm("pruning")
    assert prune.settings_for("nih-any-vgg-16") == {"units": 1500, "max_steps": 60, "layers": "features.*"}
    assert prune.settings_for("nih-effusion-resnet-18")["layers"] == "conv1"
    goal = prune.goal("nih-any-vgg-16", "eod", plan.performance)
    assert (goal.min_performance, goal.max_gap) == (None, None)  # performance may fall by 0.02
    papers = read_plan("paper-mimic-cxr").arm("bias-gda").settings_for("mimic-cxr-sex-vgg-16")
    assert plan.arm("bias-gda").settings == {**papers, "evals_per_epoch": 10}  # networks from scratch change within few steps


def test_nih_with_a_pretrained_network_by_sex_and_by_age() -> None:
    plan = read_plan("nih-pretrained")
    tasks = {(d.options["finding"], d.options["attribute"], d.options.get("older")) for d in plan.data}
    assert tasks == {(f, *a) for f in ("any", "effusion", "atelectasis") for a in (("sex", None), ("age", 50))}
    assert {plan.network(d.name) for d in plan.data} == {Network("efficientnet-lite0", "imagenet")}
    papers = read_plan("paper-mimic-cxr").training  # not those of networks from scratch, but with early stopping
    assert plan.training == {**papers, "patience": 5, "step": 7}
    newer = {"level-up", "last-layer", "concept-erasure", "layer-wise"}
    newer |= {"resampling", "group-dro", "min-diff", "just-train-twice", "weight-averaging"}
    assert {arm.method for arm in plan.methods} == set(METHODS) - newer - {"auto", "single-threshold"}  # every network has one threshold
    assert (plan.splits, plan.measures) == (20, ("eod",))


@pytest.fixture
def nih(tiny_xrays, xrays: Path, tmp_path: Path) -> StudyFolder:
    return run_study(tiny_xrays(), tmp_path / "nih", runner="serial", root=xrays)


def test_nih(nih: StudyFolder, xrays: Path) -> None:
    rows = read_rows(nih)
    assert len(rows) == 2 * 2
    assert rows["performance"].between(0, 1).all()
    assert rows[["p_value", "valid_p_value"]].gt(0).all(axis=None)
    assert rows["met"].any()
    parts = balanced_parts(StudyData(source="nih", options={"finding": "effusion", "size": 16}).load(xrays), seed=1)
    assert len(parts.test) >= 8
    counts = len(parts.test) * rows.loc[rows["seed"] == 1, "test_accuracy"].to_numpy()
    assert counts == pytest.approx(np.round(counts))  # of a test set of that size


@pytest.mark.parametrize(
    ("finding", "attribute", "runner"), [("enlarged cardiomediastinum", "sex", "serial"), ("pneumonia", "ethnicity", "processes")]
)
def test_mimic_cxr(tiny_xrays, xrays: Path, tmp_path: Path, finding: str, attribute: str, runner: str) -> None:
    data = [{"source": "mimic-cxr", "name": "cxr", "options": {"finding": finding, "attribute": attribute, "size": 16}}]
    arms = ["standard", {"method": "pruning", "settings": {"steps": 9}, "overrides": {"cxr": {"layers": "0", "steps": 2}}}]
    plan = tiny_xrays(data=data, methods=arms, splits=1, keep_networks=False)
    folder = run_study(plan, tmp_path / "out", runner=runner, workers=1, root=xrays)
    rows = read_rows(folder).set_index("method")
    assert set(rows.index) == {"standard", "pruning"}
    told = json.loads(rows.loc["pruning", "settings"])
    assert (told["layers"], told["steps"]) == ("0", 2)
    assert rows.loc["pruning", "steps"] <= 3


def test_deleting_networks_changes_no_row(tiny_xrays, nih: StudyFolder, everything, xrays: Path, tmp_path: Path) -> None:
    plan, at_once = tiny_xrays(keep_networks=False), list[int]()
    out = tmp_path / "dropped"

    def look(_: Event) -> None:
        at_once.append(len(list(out.glob("models/*.safetensors"))))

    dropped = run_study(plan, out, runner="serial", root=xrays, progress=look)
    assert max(at_once) == 1  # the methods of a network come before the next training
    assert list(out.glob("models/*.safetensors")) == []
    pd.testing.assert_frame_equal(everything(nih), everything(dropped), check_exact=True)
    assert set(read_timings(dropped)["method"]) == {"training", "standard", "bias-gda"}
    # If a run is killed after a training, the network is used; if it is killed before, the network is trained again.
    methods = [task for task in tasks_of(plan) if task.method == "bias-gda"]
    dropped.file(methods[0]).unlink()
    again = run_study(plan, out, runner="serial", root=xrays)
    pd.testing.assert_frame_equal(everything(nih), everything(again), check_exact=True)
    assert list(out.glob("models/*.safetensors")) == []
    # A run that is killed just before it deletes a network.
    dropped.file(methods[0].training).write_bytes(nih.file(methods[0].training).read_bytes())
    run_study(plan, out, runner="serial", root=xrays)
    assert list(out.glob("models/*.safetensors")) == []


@pytest.mark.parametrize("keep", [True, False])
def test_splits_are_completed_in_order_and_networks_that_are_kept_are_trained_first(keep: bool, tmp_path: Path) -> None:
    data = [{"source": "phantom", "name": name, "model": "squeezenet"} for name in ("one", "other")]
    plan = make_plan({"name": "x", "data": data, "methods": ["standard", "random"], "splits": 3, "keep_networks": keep})
    run = _Run(StudyFolder(tmp_path, plan, "", ""), tasks_of(plan), None, None)
    done = []
    while task := run._next_task():  # as one worker takes them
        done.append(task)
    places = [(keep and bool(task.method), task.seed) for task in done]
    assert places == sorted(places)
    assert len(done) == len(tasks_of(plan))


def test_a_method_that_fails_keeps_its_network(tiny_xrays, xrays: Path, tmp_path: Path) -> None:
    plan = tiny_xrays(keep_networks=False, splits=1, methods=["standard", {"method": "pruning", "settings": {"layers": "nothing"}}])
    with pytest.raises(TasksFailed, match=facts("nothing")):
        run_study(plan, tmp_path / "out", runner="serial", root=xrays)
    assert len(list((tmp_path / "out" / "models").glob("*.safetensors"))) == 1


def test_decoding_is_reported(tiny_xrays, xrays: Path, tmp_path: Path) -> None:
    events: list[Event] = []
    run_study(tiny_xrays(splits=1), tmp_path / "out", runner="serial", root=xrays, progress=events.append)
    told = [event.running[0] for event in events if event.running and "decoded" in event.running[0]]
    assert told[-1] == "nih: 128 images decoded"
    assert [event.done for event in events] == sorted(event.done for event in events)


def test_phantoms_are_simulated_in_the_worker(tiny_xrays, tmp_path: Path) -> None:
    data = [{"source": "phantom", "options": {"n": 200, "size": 16}, "redraw": True}]
    rows = read_rows(run_study(tiny_xrays(data=data), tmp_path / "out", runner="serial"))
    assert rows["gap"].notna().all()
    assert rows.groupby("method")["gap"].nunique().max() == 2


def test_the_network_of_the_phantom_study_runs(tmp_path: Path) -> None:
    raw = narrow(read_plan("phantom"), splits=1, methods=["standard"])
    plan = raw.changed(data=[raw.data[0].changed(options={"n": 120, "size": 32})], training={"epochs": 1})
    rows = read_rows(run_study(plan, tmp_path / "out", runner="serial"))
    assert rows["performance"].between(0, 1).all()


def test_images_need_a_network_for_images(tiny_xrays, xrays: Path, tmp_path: Path) -> None:
    with pytest.raises(TasksFailed, match=facts("mlp")):
        run_study(tiny_xrays(model="mlp", splits=1), tmp_path / "out", runner="serial", root=xrays)


def test_splits_of_the_real_images(data_root: Path) -> None:
    if not (data_root / "cxr-nih" / "metadata.csv").is_file():
        pytest.skip("no cxr-nih in EQUIPOISE_DATA")
    plan = read_plan("nih")
    cohort = StudyData(source="nih", options={"finding": "effusion", "size": 16}).load(data_root)
    parts = _made_parts(plan, "nih-effusion-resnet-18", cohort, 0)
    assert [round(float((p.groups == "M").mean()), 2) for p in parts] == [0.75, 0.5, 0.5]
    assert [float(p.y.mean()) for p in parts] == [0.5, 0.5, 0.5]
