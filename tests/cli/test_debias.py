"""`equipoise debias` as an engineer types it: what is written, what is printed, and one clear message for everything wrong."""

import json
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from equipoise import Cohort
from equipoise.data import hold_out, sha256
from equipoise.methods import Note
from equipoise.models import HEADS, READ_IS_NOT_USED, load_exported, predict
from equipoise.report import note_words, p_words
from support import hospital
from support.bundles import read_rule
from support.facts import says
from support.published import debias

ROLES = ["--label", "sick", "--group", "sex", "--reference", "M", "--patient", "pid"]
TABLE = ["debias", "local.csv", *ROLES, "--id", "id", "--model", "net.py:build", "--weights", "net.safetensors", "--out", "repaired"]
IMAGES = ["debias", "images.csv", *ROLES, "--images", "xrays", "--size", hospital.SIDE, "--model", "net.py:cnn"]
IMAGES += ["--weights", "cnn.safetensors", "--out", "repaired"]
QUICK = [
    "--draws",
    20,
    "--set",
    "bias-gda.schedule=paper",
    "--set",
    "bias-gda.epochs=3",
    "--set",
    "bias-gda.learning_rate=0.01",
    "--min-performance",
    0.6,
]
FAST = [*QUICK, "--no-onnx"]


@pytest.fixture
def table(run, tmp_path):
    """The run of a command in a folder with a table and its network."""
    hospital.table(tmp_path)
    return run


# what is written and printed


def test_a_table_and_several_methods(table, tmp_path):
    pytest.importorskip("onnxscript")
    code, out, err = table(*TABLE, *QUICK, "--method", "bias-gda", "--method", "reject-option", "--method", "equalised-odds")
    assert (code, err) == (0, "")
    for part in ("original", "(chosen)", "reject-option", "equalised-odds", "held-out rows", "F minus M", "Written to repaired"):
        assert part in out
    names = {path.name for path in (tmp_path / "repaired").iterdir()}
    weights, papers = {"repaired.safetensors", "model.onnx"}, {"report.html", "card.md", "card.xml", "README.txt"}
    assert names == weights | papers | {"rule.json", "audit.json", "trace.csv", "run.json"}
    assert set(load_file("repaired/repaired.safetensors")) == set(load_file("net.safetensors"))


def test_bias_gda_as_published_on_the_command_line(table, tmp_path):
    found = {}
    for mode in ("eval", "train"):
        assert table(*TABLE, *FAST, "--method", "bias-gda", "--set", f"bias-gda.mode={mode}", "--overwrite").code == 0
        run = json.loads((tmp_path / "repaired" / "run.json").read_text())
        assert run["settings"]["mode"] == mode
        found[mode] = (tmp_path / "repaired" / "trace.csv").read_text()
    assert found["eval"] != found["train"]
    code, _, err = table(*TABLE, *FAST, "--method", "bias-gda", "--set", "bias-gda.mode=trian", "--overwrite")
    assert code == 2
    assert "train" in err


def test_run_json_says_how_to_do_it_again(table, tmp_path):
    assert table(*TABLE, *FAST, "--weights", "nested.pt", "--seed", 3).code == 0
    run = json.loads((tmp_path / "repaired" / "run.json").read_text())
    assert run["command"].startswith("equipoise debias local.csv --label sick --group sex")
    assert "--seed 3" in run["command"]
    assert run["seed"] == 3
    assert set(run["versions"]) == {"equipoise", "torch", "numpy", "pandas", "python"}
    assert run["hashes"] == {name: sha256((tmp_path / name).read_bytes()) for name in ("local.csv", "nested.pt", "net.py")}
    assert run["model"]["load"] == f"{tmp_path / 'net.py'}:build"
    assert run["inputs"]["features"] == ["a", "b", "c"]
    assert run["settings"]["epochs"] == 3
    parts, patients = run["sets"], pd.read_csv("local.csv")["pid"].nunique()
    assert parts["repair"]["rows"] + parts["test"]["rows"] == hospital.ROWS
    assert parts["repair"]["patients"] + parts["test"]["patients"] == patients  # nobody is in both
    assert parts["test"]["rows"] == pytest.approx(0.3 * hospital.ROWS, abs=2)
    assert torch.load("repaired/repaired.pt", weights_only=True)["epoch"] == 7


def test_json_is_one_document_and_the_same_again(table, tmp_path):
    code, out, err = table(*TABLE, *FAST, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert {"value", "low", "high"} <= found["before"]["eod"].keys()
    assert found["before"]["rows"] == found["after"]["rows"] == json.loads(Path("repaired/run.json").read_text())["sets"]["test"]["rows"]
    assert found["methods"]["bias-gda"]["repair_set"]["performance"] >= 0.6
    assert (found["out"], found["failures"]) == ("repaired", {})
    assert sorted(found["files"]) == sorted(path.name for path in (tmp_path / "repaired").iterdir())
    again = json.loads(table(*TABLE, *FAST, "--json", "--overwrite").out)
    for entry in (found, again):
        entry["methods"]["bias-gda"].pop("seconds")
    assert again == found


def test_a_goal_that_is_not_met_is_said_and_is_no_error(table):
    limits = ["--min-performance", 0.999, "--max-gap", 0.05]
    code, _, _ = table(
        *TABLE,
        "--method",
        "bias-gda",
        "--no-onnx",
        "--draws",
        20,
        *limits,
        "--set",
        "bias-gda.schedule=paper",
        "--set",
        "bias-gda.epochs=1",
    )
    assert code == 0
    assert json.loads(Path("repaired/run.json").read_text())["met"] is False


def test_images_with_masks_and_thumbnails(run, tmp_path):
    hospital.images(tmp_path)
    code, out, err = run(
        *IMAGES, "--method", "pruning", "--set", "pruning.steps=4", "--set", "pruning.stop_below=0", "--measure", "spd",
        "--min-performance", 0.6, "--draws", 20, "--no-onnx", "--thumbnails", "--json",
    )  # fmt: skip
    assert (code, err) == (0, "")
    assert json.loads(out)["chosen"] == "pruning"
    run_json = json.loads((tmp_path / "repaired" / "run.json").read_text())
    how = {"resize": [hospital.SIDE] * 2, "crop": None, "interpolation": "bilinear", "channels": 1, "mean": [0.5], "std": [0.25]}
    assert run_json["inputs"]["images"] == how | {"preset": None}
    assert "list of images" in run_json["hashes"]
    assert any(key.endswith(".unit_mask") for key in load_file("repaired/repaired.safetensors"))


def test_whole_channels_leave_the_keys_as_they_were(run, tmp_path):
    hospital.images(tmp_path)
    settings = ["--set", "pruning.granularity=channel", "--set", "pruning.units=1", "--set", "pruning.stop_below=0"]
    assert (
        run(*IMAGES, "--method", "pruning", *settings, "--draws", 20, "--no-onnx", "--measure", "spd", "--min-performance", 0.5).code == 0
    )
    assert set(load_file("repaired/repaired.safetensors")) == set(load_file("cnn.safetensors"))


def test_an_exported_program_comes_back_as_one(table, tmp_path):
    import warnings

    model = hospital.network("build")
    model.load_state_dict(load_file("net.safetensors"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(model, (torch.randn(4, 3),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},))
        torch.export.save(program, "net.pt2")
    arguments = ["debias", "local.csv", *ROLES, "--id", "id", "--model", "net.pt2", "--out", "repaired"]
    assert table(*arguments, *FAST).code == 0
    assert {"repaired.pt2", "repaired.safetensors"} <= {path.name for path in (tmp_path / "repaired").iterdir()}
    assert table(*arguments, "--no-onnx", "--draws", 20, "--min-performance", 0.6, "--method", "bias-score", "--overwrite").code == 0
    assert all(torch.equal(value, load_file("net.safetensors")[key]) for key, value in load_file("repaired/repaired.safetensors").items())
    frame, x, _ = hospital.patients()
    cohort = Cohort.from_arrays(torch.from_numpy(x), frame["sick"], frame["sex"], reference="M", patients=frame["pid"])
    candidate = debias(load_exported("net.pt2"), hold_out(cohort, 0.3)[0], method="bias-score", min_performance=0.6)
    assert candidate.chosen > 0
    found = json.loads(table("apply", "repaired", "local.csv", "--trust", "--json").out)
    assert [row["score"] for row in found["decisions"]] == pytest.approx(predict(candidate.model, cohort).score, abs=1e-6)
    code, _, err = table(*arguments, "--method", "pruning", "--overwrite")
    assert code == 2
    assert says(err, "pruning", "layers")


def test_a_method_that_trains_gets_rows_to_train_on(table):
    arguments = [*TABLE, "--no-onnx", "--draws", 20, "--method", "adversarial-training", "--set", "adversarial-training.epochs=2"]
    code, _, err = table(*arguments)
    assert code == 2
    assert "--train train.csv" in err
    assert table(*arguments, "--train", "local.csv").code == 0


# beyond the paper: auto, honest selection, levelling up


@pytest.mark.parametrize("chosen", ["bias-score", "group-thresholds", "bias-gda"])
def test_auto_writes_the_folder_of_the_method_that_it_takes(table, tmp_path, chosen):
    options = [
        "--set",
        "auto.methods=standard",
        "--set",
        f"auto.methods={chosen}",
        "--set",
        "auto.allow_group=true",
        "--min-performance",
        0.6,
        "--no-onnx",
        "--draws",
        20,
    ]
    own = {"bias-gda": {"schedule": "paper", "epochs": 3, "learning_rate": 0.01}}
    code, out, err = table(*TABLE, "--method", "auto", *options, "--set", f"auto.settings={json.dumps(own)}")
    assert (code, err) == (0, "")
    assert says(out, f"Method: {chosen}, chosen by auto.", "eod")
    run = json.loads(Path("repaired/run.json").read_text())
    assert (run["method"], run["ran"]) == ("auto", chosen)
    assert (HEADS in run["files"]) == (tmp_path / "repaired" / HEADS).exists() == (chosen == "bias-score")
    assert json.loads(Path("repaired/rule.json").read_text())["needs_group"] == (chosen == "group-thresholds")
    assert set(load_file("repaired/repaired.safetensors")) == set(load_file("net.safetensors"))
    page = Path("repaired/report.html").read_text()
    assert says(page, f"repaired by {chosen}, chosen by auto", f"tried {chosen}", "tried standard")
    assert f"with {chosen}, chosen by auto\n" in Path("repaired/card.md").read_text()
    assert table("apply", "repaired", "new.csv", "--trust").code == 0


@pytest.mark.parametrize(
    ("measure", "name", "words"),
    [
        ("tpr - fpr", "tpr-fpr", "sensitivity - false positive rate"),
        ("ppv_gap", "ppv_gap", "positive predictive value"),
    ],
)
def test_a_sum_of_rates_and_a_quotient_are_named_in_words(table, measure, name, words):
    code, out, err = table(*TABLE, *FAST, "--measure", measure)
    assert (code, err) == (0, "")
    assert name in out
    assert words in Path("repaired/card.md").read_text()

    assert words in Path("repaired/report.html").read_text()


def test_what_is_to_be_minded_of_the_rows_is_printed_once(table, tmp_path):
    frame = pd.read_csv("local.csv")
    frame.loc[:9, "sex"] = None
    frame = frame[(frame["sex"] != "F") | (frame["sick"] == 0) | (frame["pid"] < 22)]
    frame.to_csv("local.csv", index=False)
    code, out, _ = table(
        *TABLE, *FAST, "--method", "bias-gda", "--method", "reject-option", "--method", "equalised-odds", "--verbose", "--force"
    )
    assert code == 0
    chosen = next(line.split()[0] for line in out.splitlines() if "(chosen)" in line)
    notes = json.loads(Path("repaired/audit.json").read_text())["methods"][chosen]["notes"]
    assert notes
    for note in notes:
        numbers = {name: value for name, value in note.items() if name not in ("kind", "subject")}
        assert f"{chosen}: {note_words(Note(note['kind'], note['subject'], numbers))}" in out
    assert out.count("too few to tell a gap from chance") == 1
    ways = [way for way in ("its threshold without the band", "the mean of all groups' probabilities") if way in out]
    assert len(ways) == 2  # how either rule decides a row without a group


def test_no_name_of_a_method_is_cut_within_a_word_in_80_columns(table, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    methods = [part for name in ("bias-gda", "equalised-odds", "group-thresholds") for part in ("--method", name)]
    code, out, _ = table(*TABLE, *FAST, *methods)
    assert code == 0
    rows = out.split("held-out rows")[1].split("Written to")[0].splitlines()
    assert max(map(len, rows)) <= 80
    heads = [row.split("  ")[0].strip() for row in rows]
    assert {"original", "bias-gda"} <= {head.removesuffix(" (chosen)") for head in heads}
    assert any(head.startswith("equalised-odds") for head in heads)
    at = heads.index("group-")
    assert heads[at + 1].startswith("thresholds")


@pytest.mark.parametrize("method", ["group-thresholds", "reject-option", "equalised-odds"])
def test_a_rule_that_was_declined_is_not_said_to_need_the_group(table, method):
    code, out, err = table(*TABLE, "--method", method, "--selection", "honest", "--no-onnx")
    assert (code, err) == (0, "")
    assert out.startswith("Unchanged")
    assert json.loads(Path("repaired/rule.json").read_text())["needs_group"] is False
    notes = json.loads(Path("repaired/audit.json").read_text())["methods"][method]["notes"]
    assert [note["kind"] for note in notes if note["kind"] in ("needs_group", "band", "randomised")] == []
    assert f"{method}: needs each patient's group" not in out


def test_what_may_be_lost_is_the_floor_of_the_run(table):
    quick = ["--draws", 20, "--set", "bias-gda.schedule=paper", "--set", "bias-gda.epochs=3", "--no-onnx"]
    assert table(*TABLE, *quick, "--max-loss", 0.1).code == 0
    goal, trace = json.loads(Path("repaired/run.json").read_text())["goal"], pd.read_csv("repaired/trace.csv")
    assert goal["min_performance"] == pytest.approx(trace["performance"].iloc[0] - 0.1)


def test_honest_selection_says_what_rows_held_out_have_corrected(table):
    assert table(*TABLE, *FAST, "--selection", "honest").code == 0
    assert json.loads(Path("repaired/run.json").read_text())["goal"]["selection"] == "honest"
    trace = pd.read_csv("repaired/trace.csv").query("method == 'bias-gda'")
    assert trace[["gap_honest", "gap_se", "performance_honest", "performance_se"]].notna().all(axis=None)


@pytest.mark.parametrize(("option", "least"), [(["--no-group-worse"], None), (["--min-rate", "tpr=0.8"], 0.8)])
def test_no_group_falls_below_what_is_kept(table, option, least):
    assert table(*TABLE, "--method", "group-thresholds", "--no-onnx", "--draws", 20, *option).code == 0
    run, rule = json.loads(Path("repaired/run.json").read_text()), read_rule(Path("repaired/rule.json"))
    assert run["met"] is None  # the goal has no maximum gap
    assert run["goal"]["keep"] == {"tpr": least or "before"}
    model, (frame, x, _) = hospital.network("build").eval(), hospital.patients()
    model.load_state_dict(load_file("net.safetensors"))
    cohort = Cohort.from_arrays(torch.from_numpy(x), frame["sick"], frame["sex"], reference="M", patients=frame["pid"])
    scores = predict(model, hold_out(cohort, 0.3)[0])
    before = scores.score >= pd.read_csv("repaired/trace.csv").query("method == 'standard'")["threshold"].iloc[0]
    for group in ("M", "F"):
        sick = (scores.attribute.codes == scores.attribute.levels.index(group)) & (scores.y == 1)
        assert rule.decide(scores)[sick].mean() >= (before[sick].mean() if least is None else least)


# a dry run


def test_the_plan_says_who_and_what_and_does_nothing(table, tmp_path):
    before = sorted(tmp_path.iterdir())
    code, out, err = table(*TABLE, "--method", "bias-gda", "--method", "reject-option", "--dry-run")
    assert (code, err) == (0, "")
    for part in ("repair", "test", "45 evaluations", "another decision rule", "nothing was done"):
        assert part in " ".join(out.split())
    assert sorted(tmp_path.iterdir()) == before


def test_the_plan_counts_the_probes(table):
    code, out, _ = table(*TABLE, "--method", "reject-option", "--dry-run", "--probe", "--draws", 5)
    assert code == 0
    assert says(out, "probes")


def test_the_plan_as_json(table):
    found = json.loads(table(*TABLE, "--dry-run", "--json").out)
    assert sum(row["rows"] for row in found["sets"]) == hospital.ROWS
    assert found["seconds"] > 0


# what is wrong

BAD = {
    "unknown method": (["--method", "bias-gd"], ["Did you mean 'bias-gda'?"]),
    "unknown measure": (["--measure", "eodd"], ["Did you mean 'eod'?"]),
    "a minimum performance above 1": (["--min-performance", "75"], ["min_performance must be between 0 and 1; got 75"]),
    "a loss beside a floor": (["--min-performance", "0.6", "--max-loss", "0.03"], ["max_loss cannot be combined"]),
    "no such fraction": (["--test-fraction", "1"], ["--test-fraction must be between 0 and 1"]),
    "a setting without a method": (["--set", "units=3"], ["METHOD.SETTING=VALUE", "'units=3'"]),
    "a setting of another method": (["--set", "pruning.units=3"], ["'pruning'", "Valid: auto"]),
    "an unknown setting": (["--set", "bias-gda.epoch=3"], ["Did you mean 'epochs'?"]),
    "a setting of another type": (["--set", "bias-gda.epochs=many"], ["bias-gda.epochs", "'many'"]),
    "weights that do not fit": (["--weights", "other.pt"], ["1 weights of the network are not in the file: 2.bias", "extra"]),
    "no weights file": (["--weights", "none.pt"], ["no such file: none.pt"]),
    "a factory that raises": (["--model", "net.py:raises"], ["net.py:raises raised KeyError: 'no GPU'"]),
    "a factory with arguments": (["--model", "net.py:needs"], ["needs the arguments width"]),
    "a network with two outputs": (["--model", "net.py:two", "--weights", "two.pt"], ["it returned (2, 2)"]),
    "no such column": (["--patient", "ill"], ["no column 'ill'"]),
    "no such card": (["--card", "none.toml"], ["none.toml"]),
    "thumbnails of a table": (["--thumbnails"], ["--thumbnails requires --images"]),
    "an unknown selection": (["--selection", "honestly"], ["Did you mean 'honest'?"]),
    "a minimum without a number": (["--min-rate", "tpr"], ["--min-rate must be RATE=NUMBER, as in tpr=0.8; got 'tpr'"]),
    "a minimum in words": (["--min-rate", "tpr=high"], ["--min-rate must be RATE=NUMBER", "'tpr=high'"]),
    "a minimum above 1": (["--min-rate", "tpr=80"], ["a minimum in [0, 1]; got 80"]),
    "a minimum of no rate": (["--min-rate", "tprr=0.8"], ["Did you mean 'tpr'?"]),
    "two limits of one rate": (["--no-group-worse", "--min-rate", "tpr=0.8"], ["tpr has two limits, before and 0.8"]),
    "two minima and a fraction": (["--min-rate", "a", "--min-rate", "b", "--draws", "1"], ["3 problems", "'a'", "'b'", "--draws"]),
    "an unknown method for auto": (["--method", "auto", "--set", "auto.methods=bias-gd"], ["Did you mean 'bias-gda'?"]),
    "several at once": (
        ["--min-performance", "2", "--draws", "1", "--method", "prunning"],
        ["3 problems", "--draws", "min_performance", "'pruning'"],
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_message_and_writes_nothing(table, tmp_path, case):
    arguments, expected = BAD[case]
    state = hospital.network("build").state_dict()
    state["extra"] = state.pop("2.bias")
    torch.save(state, "other.pt")
    torch.save(hospital.network("two").state_dict(), "two.pt")
    before = sorted(tmp_path.iterdir())
    code, out, err = table(*TABLE, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    for part in expected:
        assert part in err
    assert sorted(path for path in tmp_path.iterdir() if path.name != "__pycache__") == before


def test_an_output_folder_that_is_not_empty_is_refused_before_the_network_is_even_built(table, tmp_path, monkeypatch):
    (tmp_path / "repaired").mkdir()
    (tmp_path / "repaired" / "thesis.txt").write_text("years of work")
    monkeypatch.setattr("equipoise.models.loading.build", lambda *_: pytest.fail("the network was built"))
    code, _, err = table(*TABLE, *FAST)
    assert code == 2
    assert says(err, "repaired", "thesis.txt", "--overwrite")


def test_overwrite_replaces_a_run_and_leaves_other_files(table, tmp_path):
    assert table(*TABLE, *FAST, "--weights", "net.pt").code == 0
    (tmp_path / "repaired" / "thesis.txt").write_text("years of work")
    assert table(*TABLE, *FAST, "--overwrite").code == 0
    names = {path.name for path in (tmp_path / "repaired").iterdir()}
    assert "thesis.txt" in names
    assert "repaired.pt" not in names  # of the run before, whose weights came as a torch file


def test_an_interruption_leaves_nothing_behind(table, tmp_path, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr("equipoise.report.documents.cards", interrupted)
    assert table(*TABLE, *FAST).code not in (0, 2)
    assert sorted(path for path in tmp_path.iterdir() if path.name != "__pycache__") == before


def test_an_operator_that_onnx_lacks_is_named_and_all_else_is_there(table, tmp_path):
    pytest.importorskip("onnxscript")
    torch.save(hospital.network("Odd").state_dict(), "odd.pt")
    code, out, err = table(*TABLE, *QUICK, "--min-performance", 0, "--model", "net.py:Odd", "--weights", "odd.pt", "--json")
    assert code == 0
    assert says(err, "model.onnx")
    assert "bessel_j0" in json.loads(out)["failures"]["model.onnx"]
    names = {path.name for path in (tmp_path / "repaired").iterdir()}
    assert "model.onnx" not in names
    assert {"repaired.pt", "report.html", "run.json"} <= names


def test_a_report_that_fails_is_no_success_but_the_network_is_there(table, tmp_path, monkeypatch):
    def fails(*_: object, **__: object) -> None:
        raise ValueError("no template")

    monkeypatch.setattr("equipoise.report.documents.report_page", fails)
    code, _, err = table(*TABLE, *FAST)
    assert code == 1
    assert says(err, "report.html", "ValueError: no template")
    assert (tmp_path / "repaired" / "repaired.safetensors").exists()


def test_no_weights_means_those_of_the_factory(table, tmp_path):
    (tmp_path / "ready.py").write_text(
        "import torch\nfrom net import build as plain\nfrom safetensors.torch import load_file\n"
        "def build():\n    model = plain()\n    model.load_state_dict(load_file('net.safetensors'))\n    return model\n"
    )
    arguments = ["debias", "local.csv", *ROLES, "--id", "id", "--model", "ready.py:build", "--out", "repaired"]
    assert table(*arguments, *FAST).code == 0
    assert set(load_file("repaired/repaired.safetensors")) == set(load_file("net.safetensors"))


def test_help_shows_an_example(run):
    code, out, _ = run("debias", "--help")
    assert code == 0
    assert says(" ".join(out.replace("│", " ").split()), "equipoise debias local.csv --images xrays/")


def test_a_network_in_half_precision_is_refused_with_the_remedy(table):
    save_file({key: value.half() for key, value in load_file("net.safetensors").items()}, "half.safetensors")
    Path("half.py").write_text("from net import build as plain\ndef build():\n    return plain().half()\n")
    code, _, err = table(*TABLE, "--model", "half.py:build", "--weights", "half.safetensors")
    assert code == 2
    assert "Half" in err or "float16" in err


def test_gaps_are_next_to_their_p_values_and_the_best_rule(table, monkeypatch):
    monkeypatch.setenv("COLUMNS", "140")
    code, out, err = table(*TABLE, *FAST, "--method", "bias-gda", "--method", "reject-option", "--verbose")
    assert (code, err) == (0, "")
    document = json.loads(Path("repaired/audit.json").read_text())
    second = out[out.index("Permutation p-values") :]
    for name, found, limit in (
        ("original", document["before"], document["limit"]),
        ("reject-option", document["methods"]["reject-option"]["test_set"], document["methods"]["reject-option"]["limit"]),
    ):
        line = next(line for line in second.splitlines() if line.strip().startswith(name))
        eod = found["eod"]
        p = [p_words(eod[name]) for name in ("p_value", "p_adjusted")]
        assert line.split()[-4:] == [f"{abs(eod['value']):.3f}", *p, f"{-limit['below']:+.3f}"]
        assert limit["below"] >= -1e-12  # the same scores
        assert limit["performance"] == pytest.approx(found["balanced_accuracy"]["value"] + limit["below"])
    assert "group-aware upper bound" in " ".join(out.split())
    assert "encoding" not in document


def test_probes_go_into_the_report_and_the_audit(table):
    code, _, err = table(*TABLE, *FAST, "--probe")
    assert (code, err) == (0, "")
    html = Path("repaired/report.html").read_text()
    assert 'section id="probes"' in html
    assert READ_IS_NOT_USED in html
    layers = json.loads(Path("repaired/audit.json").read_text())["encoding"]
    assert set(layers) == {"before", "after"}
    for rows in layers.values():
        assert rows[0]["layer"] == "inputs"
        assert rows[-1]["layer"] == "output"
        assert all(0 <= row["auroc"] <= 1 for row in rows)


# the rule in use, an official test set, and too few patients


FEW = ["--method", "group-thresholds", "--no-onnx"]


def test_the_original_decides_by_the_threshold_in_use(table):
    code, out, _ = table(*TABLE, *FEW, "--threshold", 0.3)
    assert (code, "0.3" in next(line for line in out.splitlines() if "original decides" in line)) == (0, True)
    found, trace = json.loads(Path("repaired/audit.json").read_text()), pd.read_csv("repaired/trace.csv")
    assert found["before"]["threshold"] == 0.3
    assert found["original"]["in_use"] is True
    assert trace.groupby("method")["threshold"].first().to_dict() == {"standard": 0.3, "group-thresholds": 0.3}
    assert table(*TABLE, *FEW, "--threshold", 1.3, "--overwrite").code == 2


def test_an_official_test_set_is_used_as_it_is(table, tmp_path):
    frame = pd.read_csv("local.csv")
    test = frame["pid"] >= frame["pid"].max() - 40
    frame[test].to_csv("official.csv", index=False)
    frame[~test].to_csv("first.csv", index=False)
    command = ["debias", "first.csv", *TABLE[2:], *FEW, "--test", "official.csv"]
    assert table(*command).code == 0
    run = json.loads(Path("repaired/run.json").read_text())
    assert run["sets"] == {
        "repair": {"rows": int((~test).sum()), "patients": int(frame.loc[~test, "pid"].nunique())},
        "test": {"rows": int(test.sum()), "patients": int(frame.loc[test, "pid"].nunique())},
    }
    assert "official.csv" in run["hashes"]
    code, _, err = table(*command, "--test-fraction", 0.2, "--overwrite")
    assert (code, says(err, "--test-fraction")) == (2, True)
    both = ["debias", "local.csv", *TABLE[2:], *FEW, "--test", "official.csv", "--overwrite"]
    code, _, err = table(*both)
    shared = frame.loc[test, "pid"].nunique()
    assert (code, says(err, f"{shared} of {shared}")) == (2, True)
    other = frame[test].assign(sex=lambda rows: rows["sex"].where(rows.index % 9 > 0, "X"))
    other.to_csv("official.csv", index=False)
    code, _, err = table(*command, "--overwrite")
    assert (code, says(err, "'X'", "sex")) == (2, True)


def test_too_few_patients_stop_it_with_counts_unless_forced(table):
    frame = pd.read_csv("local.csv")
    kept = (
        (frame["sex"] != "F")
        | (frame["sick"] == 0)
        | frame["pid"].isin(frame.loc[(frame["sex"] == "F") & (frame["sick"] == 1), "pid"].unique()[:6])
    )
    frame[kept].to_csv("local.csv", index=False)
    code, _, err = table(*TABLE, *FEW)
    assert code == 2
    assert says(err, "'F' positives", "in the repair set", "in the test set", "--force", "spd")
    assert not Path("repaired").exists()
    code, out, _ = table(*TABLE, *FEW, "--force", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["forced"] is True
    assert found["outcome"] in ("unclear", "harm", "unchanged")


def test_the_default_is_honest_and_tells_what_was_tried(table):
    code, out, _ = table(*TABLE, "--selection", "honest", "--no-onnx", "--no-group-rules", "--budget", 0.04, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["chosen"] == "auto"
    assert not found["methods"]["auto"]["needs_group"]
    assert found["goal"]["selection"] == "honest"
    assert found["outcome"] == found["judgement"]["outcome"]
    code, _, err = table(*TABLE, *FEW, "--no-group-rules", "--overwrite")
    assert (code, says(err, "group-thresholds")) == (2, True)
