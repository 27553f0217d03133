"""`equipoise apply`: scores and decisions for new patients, with the group only if the rule needs it."""

import hashlib
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from equipoise import Cohort, cli
from equipoise.case import Bundle
from equipoise.case.schema import sealed
from equipoise.errors import Untrusted
from equipoise.models.export import HEADS_FILE
from support import hospital
from support.bundles import rule_in_file
from support.command import Ran
from support.facts import says
from support.published import debias

ROLES = ["--label", "sick", "--group", "sex", "--reference", "M", "--patient", "pid"]
NETWORK = ["--model", "net.py:build", "--weights", "net.safetensors", "--set", "report.onnx=false", "--set", "repair.draws=10"]


def _made(folder: Path, *arguments: object) -> None:
    assert cli.run([str(a) for a in arguments]) == 0
    assert (folder / "repaired" / "run.json").exists()


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """One hospital with a repaired folder per method."""
    made = {}
    settings = {
        "bias-gda": ["--set", "bias-gda.schedule=paper", "--set", "bias-gda.epochs=2", "--set", "bias-gda.learning_rate=0.01"],
        "reject-option": [],
        "equalised-odds": [],
    }
    settings |= {"bias-score": ["--set", "goal.min_performance=0.6"], "group-thresholds": []}
    with pytest.MonkeyPatch.context() as patch:
        for method, given in settings.items():
            made[method] = tmp_path_factory.mktemp(method)
            hospital.table(made[method])
            patch.chdir(made[method])
            _made(
                made[method],
                "debias",
                "local.csv",
                *ROLES,
                "--set",
                "data.id=id",
                *NETWORK,
                "--method",
                method,
                "--set",
                "goal.selection=paper",
                *given,
                "--out",
                "repaired",
            )
        made["images"] = tmp_path_factory.mktemp("images")
        hospital.images(made["images"])
        patch.chdir(made["images"])
        pictures = [
            "--images",
            "xrays",
            "--set",
            f"images.size={hospital.SIDE}",
            "--model",
            "net.py:cnn",
            "--weights",
            "cnn.safetensors",
            "--set",
            "report.onnx=false",
        ]
        pruning = [
            "--method",
            "pruning",
            "--set",
            "pruning.steps=4",
            "--set",
            "pruning.stop_below=0",
            "--set",
            "goal.selection=paper",
            "--measure",
            "spd",
            "--set",
            "goal.min_performance=0.6",
        ]
        _made(made["images"], "debias", "images.csv", *ROLES, *pictures, *pruning, "--set", "repair.draws=10", "--out", "repaired")
    return made


@pytest.fixture
def run(folders, capsys, monkeypatch, tmp_path) -> Callable[..., Ran]:
    """Runs `apply` in a copy of a hospital's folder; the first argument is its method."""

    def call(method: str, *arguments: object) -> Ran:
        if not (tmp_path / method).exists():
            shutil.copytree(folders[method], tmp_path / method)
        monkeypatch.chdir(tmp_path / method)
        monkeypatch.setenv("COLUMNS", "100")
        capsys.readouterr()
        asked = [] if {"--model", "--trust", "--untrusted"} & set(map(str, arguments)) else ["--trust"]
        given = [str(argument) for argument in arguments if argument != "--untrusted"]
        code, out, err = cli.run(["apply", *given, *asked]), *capsys.readouterr()
        lines = err.splitlines(keepends=True)
        if lines and lines[0].startswith("running "):
            assert "SHA-256" in lines.pop(0)
        return Ran(code, out, "".join(lines))

    return call


def _scores(frame: pd.DataFrame) -> np.ndarray:
    """The scores of the repaired weights, computed with plain torch."""
    model = hospital.network("build")
    model.load_state_dict(load_file("repaired/repaired.safetensors"))
    with torch.no_grad():
        return torch.sigmoid(model(torch.tensor(frame[["a", "b", "c"]].to_numpy(np.float32)))[:, 0].double()).numpy()


def test_scores_and_decisions_without_the_group(run):
    code, out, err = run("bias-gda", "repaired", "new.csv")
    assert (code, err) == (0, "")
    found, new = pd.read_csv(io.StringIO(out)), pd.read_csv("new.csv")
    assert list(found.columns) == ["id", "pid", "score", "decision"]
    assert found["id"].tolist() == new["id"].tolist()
    np.testing.assert_allclose(found["score"], _scores(new), atol=1e-7)
    assert found["decision"].tolist() == (found["score"] >= rule_in_file(Path("repaired/rule.json")).value).astype(int).tolist()
    assert 0 < found["decision"].sum() < len(found)
    new.drop(columns=["sex", "id", "pid"]).to_csv("bare.csv", index=False)
    bare = pd.read_csv(io.StringIO(run("bias-gda", "repaired", "bare.csv").out))
    assert list(bare.columns) == ["row", "score", "decision"]
    assert bare["decision"].tolist() == found["decision"].tolist()


def test_decisions_go_to_a_file_and_json_holds_the_same(run):
    code, out, _ = run("bias-gda", "repaired", "new.csv", "--out", "new/decisions.csv")
    assert code == 0
    assert f"{hospital.ROWS} rows" in out
    saved = pd.read_csv("new/decisions.csv")
    document = json.loads(run("bias-gda", "repaired", "new.csv", "--json").out)
    assert [row["decision"] for row in document["decisions"]] == saved["decision"].tolist()
    assert (document["rows"], document["positive"]) == (len(saved), saved["decision"].sum())


def test_a_rule_by_group_has_one_threshold_per_group(run):
    code, out, _ = run("reject-option", "repaired", "new.csv")
    assert code == 0
    found, new, rule = pd.read_csv(io.StringIO(out)), pd.read_csv("new.csv"), rule_in_file(Path("repaired/rule.json"))
    cut = np.where(new["sex"].isin(rule.favoured), rule.threshold - rule.margin, rule.threshold + rule.margin)
    assert found["decision"].tolist() == (found["score"] >= cut).astype(int).tolist()


def test_a_bias_score_equals_that_of_python(run):
    code, out, err = run("bias-score", "repaired", "new.csv")
    assert (code, err) == (0, "")
    found, new = pd.read_csv(io.StringIO(out)), pd.read_csv("new.csv")

    model = hospital.network("build").eval()
    model.load_state_dict(load_file("net.safetensors"))
    frame, x, _ = hospital.patients()
    cohort = Cohort.from_arrays(torch.from_numpy(x), frame["sick"], frame["sex"], reference="M", patients=frame["pid"])
    candidate = debias(model, cohort.hold_out(0.3, seed=0)[0], method="bias-score", min_performance=0.6)
    assert candidate.chosen > 0
    with torch.no_grad():
        raw = candidate.model(torch.tensor(new[["a", "b", "c"]].to_numpy(np.float32)))[:, 0].double()
    np.testing.assert_allclose(found["score"], torch.sigmoid(raw), atol=1e-6)
    assert found["decision"].tolist() == (found["score"] >= candidate.rule.value).astype(int).tolist()

    plain = load_file("repaired/repaired.safetensors")  # the network's own weights are untouched, under their own keys
    hospital.network("build").load_state_dict(plain, strict=True)
    assert all(torch.equal(value, plain[key]) for key, value in load_file("net.safetensors").items())
    assert np.abs(found["score"] - _scores(new)).max() > 0.01


def test_one_threshold_per_group(run):
    code, out, _ = run("group-thresholds", "repaired", "new.csv")
    assert code == 0
    found, new, rule = pd.read_csv(io.StringIO(out)), pd.read_csv("new.csv"), rule_in_file(Path("repaired/rule.json"))
    cut = new["sex"].map(dict(zip(rule.groups, rule.thresholds, strict=True)))
    assert cut.nunique() == 2
    assert found["decision"].tolist() == (found["score"] >= cut).astype(int).tolist()


def test_rows_of_one_group_and_rows_without_a_group_are_decided(run):
    run("reject-option", "repaired", "new.csv")
    new = pd.read_csv("new.csv").query("sex == 'F'")
    new.to_csv("women.csv", index=False)
    assert run("reject-option", "repaired", "women.csv").code == 0
    new.assign(sex=[None] + ["F"] * (len(new) - 1)).to_csv("gap.csv", index=False)
    code, out, err = run("reject-option", "repaired", "gap.csv")
    assert code == 0
    assert says(err, 1, "group")
    first, rule = pd.read_csv(io.StringIO(out)).iloc[0], rule_in_file(Path("repaired/rule.json"))
    assert first["decision"] == int(first["score"] >= rule.threshold)


def test_randomised_decisions_are_drawn_with_the_seed(run):
    one, two, other = (
        pd.read_csv(io.StringIO(run("equalised-odds", "repaired", "new.csv", "--set", f"apply.seed={seed}").out)) for seed in (1, 1, 2)
    )
    assert list(one.columns) == ["id", "pid", "score", "probability", "decision"]
    assert one.equals(two)
    assert one["probability"].equals(other["probability"])
    sure = one["probability"].isin([0.0, 1.0])
    assert (one["decision"][sure] == one["probability"][sure]).all()
    if not sure.all():
        assert not one["decision"].equals(other["decision"])


def test_images_with_masks_score_as_the_repaired_network(run):
    code, out, err = run("images", "repaired", "images.csv", "--images", "xrays")
    assert (code, err) == (0, "")
    found = pd.read_csv(io.StringIO(out))
    assert list(found.columns) == ["pid", "image", "score", "decision"]
    assert len(found) == hospital.ROWS
    _, _, pixels = hospital.patients()
    model, state = hospital.network("cnn").eval(), load_file("repaired/repaired.safetensors")
    masks = {key.removesuffix(".unit_mask"): state.pop(key) for key in list(state) if key.endswith(".unit_mask")}
    assert masks
    model.load_state_dict(state)
    for name, mask in masks.items():
        model.get_submodule(name).register_forward_hook(lambda _m, _i, output, mask=mask: output * mask)
    with torch.no_grad():
        expected = torch.sigmoid(model(torch.from_numpy((pixels / 255 - 0.5) / 0.25).float()[:, None]))[:, 0]
    np.testing.assert_allclose(found["score"], expected, atol=1e-6)


def test_broken_images_are_left_out_only_when_allowed(run, tmp_path):
    run("images", "repaired", "images.csv", "--images", "xrays")
    (tmp_path / "images" / "xrays" / "3.png").write_bytes(b"no image")
    code, _, err = run("images", "repaired", "images.csv", "--images", "xrays")
    assert code == 2
    assert "3.png" in err
    code, out, err = run("images", "repaired", "images.csv", "--images", "xrays", "--set", "images.skip_broken=true")
    assert code == 0
    assert says(err, 1, "image")
    found = pd.read_csv(io.StringIO(out))
    assert len(found) == hospital.ROWS - 1
    assert "3.png" not in set(found["image"])


def test_a_network_repaired_on_frontal_views_refuses_other_views(run, tmp_path):
    run("images", "repaired", "images.csv", "--images", "xrays")
    frame = pd.read_csv("images.csv").assign(view="PA")
    frame.to_csv("views.csv", index=False)
    repair = [
        "--images",
        "xrays",
        "--set",
        f"images.size={hospital.SIDE}",
        "--model",
        "net.py:cnn",
        "--weights",
        "cnn.safetensors",
        "--set",
        "report.onnx=false",
    ]
    repair += [
        "--set",
        "data.view=view",
        "--method",
        "reject-option",
        "--set",
        "goal.selection=paper",
        "--set",
        "data.conflicts=first",
        "--set",
        "repair.draws=10",
    ]
    repair += ["--out", "frontal"]
    assert cli.run([str(a) for a in ("debias", "views.csv", *ROLES, *repair)]) == 0
    code, out, err = run("images", "frontal", "views.csv", "--images", "xrays")
    assert (code, len(out.splitlines())) == (0, hospital.ROWS + 1)
    assert "data.conflicts=first" in err  # the groups of the new rows are those of the rows
    frame.assign(view=["PA", "LATERAL", *frame["view"][2:]]).to_csv("views.csv", index=False)
    code, out, err = run("images", "frontal", "views.csv", "--images", "xrays")
    assert (code, out) == (2, "")
    assert "1 of 240" in err
    assert "row 2 " in err
    code, out, err = run("images", "frontal", "images.csv", "--images", "xrays")
    assert (code, len(out.splitlines())) == (0, hospital.ROWS + 1)
    assert "'view'" in err  # could not be checked


def test_an_image_of_two_patients_is_refused(run, tmp_path):
    run("images", "repaired", "images.csv", "--images", "xrays")
    frame = pd.read_csv(tmp_path / "images" / "images.csv")
    image = frame["image"][0]
    frame.assign(image=[image, *frame["image"][1:3], image, *frame["image"][4:]]).to_csv("other.csv", index=False)
    code, out, err = run("images", "repaired", "other.csv", "--images", "xrays")
    assert (code, out) == (2, "")
    assert repr(image) in err
    assert "'pid'" in err
    frame.assign(image=[image, image, *frame["image"][2:]]).to_csv("other.csv", index=False)  # of one patient
    assert run("images", "repaired", "other.csv", "--images", "xrays").code == 0


def test_apply_takes_exactly_the_image_that_a_row_names(run, tmp_path):
    run("images", "repaired", "images.csv", "--images", "xrays")
    folder = tmp_path / "images"
    (folder / "xrays" / "patB").mkdir()
    (folder / "xrays" / "3.png").rename(folder / "xrays" / "patB" / "3.png")
    frame = pd.read_csv(folder / "images.csv")
    for name, outside in (("patA/3.png", False), ("../xrays/patA/3.png", False), (str(folder / "net.py"), True)):
        frame.assign(image=[*frame["image"][:3], name, *frame["image"][4:]]).to_csv("other.csv", index=False)
        code, out, err = run("images", "repaired", "other.csv", "--images", "xrays")
        assert (code, out) == (2, "")
        assert says(err, "row 4", name)
        assert ("images.allow_outside" in err) == outside
    code, out, err = run("images", "repaired", "images.csv", "--images", "xrays")  # by its bare name
    assert (code, len(pd.read_csv(io.StringIO(out)))) == (0, hospital.ROWS)


# bad input


def _edit(name: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> Callable[[], None]:
    return lambda: change(pd.read_csv("new.csv")).to_csv(name, index=False)


def _damage(name: str) -> None:
    content = Path(name).read_bytes()
    Path(name).write_bytes(content[:-40] + bytes(40))


BAD = {
    "no group column": (
        "reject-option",
        ["n.csv"],
        _edit("n.csv", lambda f: f.drop(columns="sex")),
        ["needs the column 'sex'", "bias-gda"],
    ),
    "a group never seen": (
        "reject-option",
        ["n.csv"],
        _edit("n.csv", lambda f: f.assign(sex=["X", *f["sex"][1:]])),
        ["was fitted on the groups M, F", "rows of X, which it never saw"],
    ),
    "no input column": ("bias-gda", ["n.csv"], _edit("n.csv", lambda f: f.rename(columns={"b": "bb"})), ["no input column 'b'", "'bb'?"]),
    "an input with a gap": (
        "bias-gda",
        ["n.csv"],
        _edit("n.csv", lambda f: f.assign(a=[None, *f["a"][1:]])),
        ["'a': 1 of 240 rows are empty"],
    ),
    "an input in words": ("bias-gda", ["n.csv"], _edit("n.csv", lambda f: f.assign(a="x")), ["'a' holds no numbers"]),
    "images for a table": ("bias-gda", ["new.csv", "--images", "."], None, ["takes columns of numbers"]),
    "no images": ("images", ["images.csv"], None, ["takes images. Name their folder"]),
    "no such folder": ("bias-gda", ["new.csv"], lambda: shutil.rmtree("repaired"), ["no such folder: repaired"]),
    "no run.json": ("bias-gda", ["new.csv"], lambda: Path("repaired/run.json").unlink(), ["has no run.json"]),
    "another run.json": ("bias-gda", ["new.csv"], lambda: Path("repaired/run.json").write_text("{}"), ["run.json", "equipoise.repaired"]),
    "no rule": ("bias-gda", ["new.csv"], lambda: Path("repaired/rule.json").unlink(), ["rule.json is listed in run.json"]),
    "no weights": ("bias-gda", ["new.csv"], lambda: Path("repaired/repaired.safetensors").unlink(), ["safetensors is listed"]),
    "no report": ("bias-gda", ["new.csv"], lambda: Path("repaired/report.html").unlink(), ["report.html is listed"]),
    "no heads": ("bias-score", ["new.csv"], lambda: Path("repaired", HEADS_FILE).unlink(), [HEADS_FILE, "is listed"]),
    "other heads": ("bias-score", ["new.csv"], lambda: shutil.copy("net.safetensors", f"repaired/{HEADS_FILE}"), [HEADS_FILE, "SHA-256"]),
    "damaged weights": ("bias-gda", ["new.csv"], lambda: _damage("repaired/repaired.safetensors"), ["repaired.safetensors", "SHA-256"]),
    "a changed rule": ("bias-gda", ["new.csv"], lambda: _damage("repaired/rule.json"), ["rule.json", "SHA-256"]),
    "a program dropped in": (
        "bias-gda",
        ["new.csv"],
        lambda: Path("repaired/repaired.pt2").write_bytes(b"PK"),
        ["repaired.pt2", "not listed in run.json"],
    ),
    "the original program": (
        "bias-gda",
        ["new.csv", "--model", "net.pt2"],
        lambda: Path("net.pt2").write_bytes(b"PK"),
        ["not the repaired"],
    ),
    "another network": (
        "bias-gda",
        ["new.csv", "--model", "net.py:two"],
        None,
        ["2 weights of the network are not in the file: bias, weight", "fit nothing in the network: 0.bias"],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_message_and_writes_nothing(run, case):
    method, arguments, prepare, expected = BAD[case]
    run(method, "--help")  # puts the folder in place
    if prepare:
        prepare()
    code, out, err = run(method, "repaired", *arguments, "--out", "decisions.csv")
    assert (code, out) == (2, "")
    assert err.startswith(("error: ", "note: the outcome of this repair"))
    for part in expected:
        assert part in err
    assert not Path("decisions.csv").exists()


def test_code_is_shown_and_runs_only_if_trusted(run, folders):
    run("bias-gda", "--help")
    code = folders["bias-gda"] / "net.py"
    digest = hashlib.sha256(code.read_bytes()).hexdigest()
    ran = run("bias-gda", "repaired", "new.csv", "--untrusted")
    assert (ran.code, ran.out) == (2, "")
    assert all(part in ran.err for part in (str(code), digest, "'build'", "--trust", "--model"))
    one, other = (run("bias-gda", "repaired", "new.csv", *asked) for asked in (["--trust"], ["--model", "net.py:build"]))
    assert one.code == other.code == 0
    assert one.out == other.out


def test_code_that_moved_or_changed_must_be_named(run, folders):
    run("bias-gda", "--help")
    code = folders["bias-gda"] / "net.py"
    content = code.read_text()
    try:
        code.write_text(content + "\nopen('was-run', 'w').close()\n")
        for asked in ("--untrusted", "--trust"):
            ran = run("bias-gda", "repaired", "new.csv", asked)
            assert ran.code == 2
            assert says(ran.err, f"--model {code}:build")
        assert not Path("was-run").exists()
        code.unlink()
        ran = run("bias-gda", "repaired", "new.csv")
        assert ran.code == 2
        assert says(ran.err, "--model")
        assert run("bias-gda", "repaired", "new.csv", "--model", "net.py:build").code == 0
    finally:
        code.write_text(content)


def test_a_module_named_in_run_json_is_not_imported_from_the_current_folder(run):
    run("bias-gda", "--help")
    Path("planted.py").write_text("open('was-run', 'w').close()\n" + hospital.CODE)
    document = json.loads(Path("repaired/run.json").read_text())
    digest = document.pop("digest")
    document["model"] |= {"load": "planted:build", "code": {"path": None, "sha256": digest}}
    Path("repaired/run.json").write_text(sealed(document))
    for asked in ("--untrusted", "--trust"):
        ran = run("bias-gda", "repaired", "new.csv", asked)
        assert ran.code == 2
        assert says(ran.err, "'planted'")
    assert not Path("was-run").exists()
    assert run("bias-gda", "repaired", "new.csv", "--model", "planted:build").code == 0  # named by the user, so it may be here
    assert Path("was-run").exists()


def test_python_has_the_same_requirements(run, folders):
    run("bias-gda", "--help")
    with pytest.raises(Untrusted, match=r"net\.py"):
        Bundle.load(Path("repaired"))
    repaired = Bundle.load(Path("repaired"), trust=True)
    assert repaired.code.path == folders["bias-gda"] / "net.py"
    assert Bundle.load(Path("repaired"), model="net.py:build").code.path == Path.cwd() / "net.py"


def test_help_shows_an_example(run):
    code, out, _ = run("bias-gda", "--help")
    assert code == 0
    assert says(" ".join(out.replace("│", " ").split()), "equipoise apply repaired/ new.csv")
