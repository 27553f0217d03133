"""The commands of `equipoise study`."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from equipoise.studies import PRESETS
from support.command import Ran
from support.facts import says
from support.xray_trees import network, write_nih

STUDY = """
splits = 2
training = { epochs = 2 }
methods = ["standard", { method = "pruning", settings = { steps = 4 }, min_performance = 0.5 }]
[[data]]
source = "loh"
options = { n = 300 }
[[data]]
source = "loh"
name = "strong"
title = "Loh, strong"
options = { n = 300, alpha = 2.0 }
"""


@pytest.fixture
def run(run: Callable[..., Ran]) -> Callable[..., Ran]:
    """Runs one `study` command in a folder that holds a study."""
    Path("mine.toml").write_text(STUDY)
    return partial(run, "study")


def test_list(run: Callable[..., Ran]) -> None:
    found = run("list")
    assert found.code == 0
    assert says(found.out, "paper-tabular")
    listed = json.loads(run("list", "--json").out)
    assert [study["name"] for study in listed] == list(PRESETS)
    assert {"paper-mimic-cxr", "nih", "phantom"} < set(PRESETS)
    assert "nih-effusion-vgg-16" in found.out


def test_sums_of_rates_and_quotients_run_and_show(run: Callable[..., Ran]) -> None:
    measured = 'measures = ["tpr - fpr", "ppv_gap"]\n' + STUDY.partition('[[data]]\nsource = "loh"\nname')[0]
    Path("sums.toml").write_text(measured.replace("min_performance = 0.5", 'min_performance = { "-fpr + tpr" = 0.5, ppv_gap = 0.6 }'))
    ran = run("run", "sums.toml", "--out", "results", "--runner", "serial")
    assert (ran.code, ran.err) == (0, "")
    shown = run("show", "results")
    assert shown.code == 0
    assert says(shown.out, "TPR-FPR", "PPV_GAP")
    told = json.loads(run("show", "results", "--json").out)
    assert (told["rows"], {line["measure"] for line in told["table"]}) == (2 * 2 * 2, {"tpr-fpr", "ppv_gap"})


def test_run_and_show(run: Callable[..., Ran], tmp_path: Path) -> None:
    ran = run("run", "mine.toml", "--out", "results", "--runner", "serial")
    assert (ran.code, ran.err) == (0, "")
    assert "Loh, strong" in ran.out
    assert {p.name for p in (tmp_path / "results").iterdir()} == {"study.json", ".lock", "models", "rows", "summary.csv", "summary.txt"}
    again = run("run", "mine.toml", "--out", "results", "--runner", "serial")
    assert again.out == ran.out
    shown = run("show", "results", "--csv", "csv", "--latex", "tex", "--figures", "fig")
    assert shown.code == 0
    assert "Loh, strong" in shown.out
    assert {p.name for p in Path("csv").iterdir()} == {"rows.csv", "table.csv", "comparison.csv"}
    assert {p.name for p in Path("tex").iterdir()} == {"spd-bias.tex", "spd-performance.tex", "eod-bias.tex", "eod-performance.tex"}
    assert {p.name for p in Path("fig").iterdir()} == {"trajectories-loh.svg", "trajectories-strong.svg"}
    told = json.loads(run("show", "results", "--json").out)
    assert (told["study"], told["rows"], len(told["table"])) == ("mine", 2 * 2 * 2 * 2, 8)
    assert {line["quantity"] for line in told["comparison"]} == {"abs_gap", "performance"}
    assert {line["method"] for line in told["timings"]} == {"training", "standard", "pruning"}
    assert all(0 < line["p_value"] <= 1 for line in told["table"])
    assert all(line["shared"] == pytest.approx(0.25, rel=0.1) for line in told["comparison"])
    assert "p" in shown.out.split()
    assert all(line["below_limit"] is not None for line in told["table"])
    valid = json.loads(run("show", "results", "--json", "--on", "validation").out)
    assert (valid["part"], told["part"]) == ("validation", "test")
    assert [line["gap_mean"] for line in valid["table"]] != [line["gap_mean"] for line in told["table"]]
    assert says(run("show", "results", "--on", "validation").out, "validation")
    assert "'train'" in run("show", "results", "--on", "train").err


@pytest.fixture
def xrays(tmp_path: Path) -> Path:
    """A study of tiny chest X-rays in the folder where commands run, and its root."""
    write_nih(tmp_path / "root" / "cxr-nih")
    Path(tmp_path, "xrays.toml").write_text(
        f"""
        splits = 1
        measures = ["eod"]
        methods = ["standard"]
        protocol = "balanced"
        keep_networks = false
        model = "{network(tmp_path)}"
        training = {{ epochs = 1 }}
        [[data]]
        source = "nih"
        options = {{ size = 16 }}
        """
    )
    return tmp_path / "root"


def test_a_study_of_images(run: Callable[..., Ran], xrays: Path) -> None:
    arguments = ("run", "xrays.toml", "--runner", "serial", "--root", str(xrays))
    (xrays / "cxr-nih" / "images" / "10000003_1.png").write_bytes(b"")
    refused = run(*arguments, "--out", "strict")
    assert refused.code == 2
    assert says(refused.err, "10000003_1.png", "0 bytes", "--skip-broken")
    ran = run(*arguments, "--out", "out", "--skip-broken", "--size", "20", "--max-pixels", "99999", "--allow-outside")
    assert ran.code == 0
    assert Path("out/broken/nih.txt").read_text() == "1 empty\n"
    assert "10000003_1.png" in ran.err  # named only on the terminal
    options = json.loads(Path("out/study.json").read_text())["definition"]["data"][0]["options"]
    assert options == {"size": 20, "skip_broken": True, "max_pixels": 99999, "allow_outside": True}
    assert list(Path("out/models").glob("*.safetensors")) == []
    assert {line["method"] for line in json.loads(run("show", "out", "--json").out)["timings"]} == {"training", "standard"}


def test_a_study_is_narrowed_by_options(run: Callable[..., Ran]) -> None:
    arguments = ("--splits", "1", "--data", "strong", "--method", "standard", "--measure", "eod", "--runner", "serial")
    assert run("run", "mine.toml", "--out", "few", *arguments).code == 0
    assert json.loads(run("show", "few", "--json").out)["rows"] == 1
    refused = run("run", "mine.toml", "--out", "few", "--runner", "serial")
    assert refused.code == 2
    assert says(refused.err, "few", "'mine'")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("run", "mine.tml", "--out", "x"), ["study", "'mine.tml'"]),
        (("run", "mine.toml", "--out", "x", "--method", "prunning"), ["'prunning'", "'pruning'"]),
        (("run", "mine.toml", "--out", "x", "--runner", "threads"), ["runner", "'threads'"]),
        (("run", "paper-tabular", "--out", "x"), ["equipoise data fetch adult"]),
        (("run", "paper-mimic-iii", "--out", "x", "--root", "nowhere"), ["physionet.org"]),
        (("run", "nih", "--out", "x", "--root", "nowhere"), ["https://nihcc.app.box.com/v/ChestXray-NIHCC"]),
        (("run", "paper-mimic-cxr", "--out", "x", "--root", "nowhere"), ["physionet.org/content/mimic-cxr-jpg"]),
        (("run", "mine.toml", "--out", "x", "--size", "64"), ["size", "loh, strong"]),
        (("run", "mine.toml", "--out", "x", "--skip-broken"), ["skip_broken", "loh, strong"]),
        (("run", "mine.toml", "--out", "x", "--max-pixels", "9"), ["max_pixels", "loh, strong"]),
        (("run", "mine.toml", "--out", "x", "--allow-outside"), ["allow_outside", "loh, strong"]),
        (("run", "paper-mimic-cxr", "--out", "x", "--no-pretrained", "--pretrained", "vgg-16=w.pth"), ["--no-pretrained", "--pretrained"]),
        (("run", "phantom", "--out", "x", "--pretrained", "w.pth"), ["resnet-18=", "'w.pth'"]),
        (("run", "phantom", "--out", "x", "--pretrained", "vgg-16=w.pth"), ["vgg-16"]),
        (("run", "phantom", "--out", "x", "--pretrained", "resnet-18=w.pth"), ["w.pth"]),
        (("show", "nowhere"), ["nowhere"]),
    ],
)
def test_bad_input_is_one_message(run: Callable[..., Ran], arguments: tuple[str, ...], said: list[str]) -> None:
    found = run(*arguments)
    assert found.code == 2
    assert says(found.err, *said)
    assert "Traceback" not in found.err
    assert not list(Path("x").glob("rows/*"))


@pytest.mark.parametrize("command", ["list", "run", "show"])
def test_help_has_an_example(run: Callable[..., Ran], command: str) -> None:
    assert says(run(command, "--help").out, f"equipoise study {command}")


def test_splits_can_be_added_later(run: Callable[..., Ran]) -> None:
    for splits in (1, 2, 1):
        assert run("run", "mine.toml", "--out", "done", "--splits", splits, "--method", "standard", "--runner", "serial").code == 0
    assert json.loads(run("show", "done", "--json").out)["rows"] == 2 * 2 * 2
