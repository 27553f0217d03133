"""`equipoise report`, and the page and PDF of `equipoise audit`: written from saved files, or refused before any work."""

import json
import re
import shutil
from pathlib import Path

import pytest

import equipoise as eq
from equipoise.report import pdf
from support.audits import HOSTILE, frame_of
from support.bundles import run_of, seal
from support.command import ran
from support.facts import says
from support.printer import FAILS, browser_at

AUDIT = ["audit", "s.csv", "--label", "y", "--score", "p", "--group", "sex", "--reference", "M"]
RULE = ["--threshold", "0.5", "--method", "group-thresholds", "--set", "repair.test_fraction=0.5"]
REPAIR = ["debias", *AUDIT[1:], *RULE]
NAMES = ["--set", "report.words.F=women", "--set", "report.words.M=men"]


@pytest.fixture
def audited(run, monkeypatch, tmp_path):
    """Runs a command in a folder with scores and a browser that prints."""
    frame_of(["F", "M"]).to_csv(tmp_path / "s.csv", index=False)
    monkeypatch.setenv(pdf.VARIABLE, str(browser_at(tmp_path / "browser")))
    return run


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    """A folder that `debias` wrote."""
    folder = tmp_path_factory.mktemp("bundle")
    frame_of(["F", "M"]).to_csv(folder / "s.csv", index=False)
    assert ran(REPAIR[0], folder / REPAIR[1], *REPAIR[2:], "--out", folder / "repaired").code == 0
    return folder / "repaired"


@pytest.fixture
def repaired(audited, bundle, tmp_path):
    """Runs a command in a folder that has a copy of it."""
    shutil.copytree(bundle, tmp_path / "repaired")
    return audited


def test_the_page_and_the_pdf_are_made_again_from_the_json_of_an_audit(audited):
    ran = audited(*AUDIT, "--out", "a.json", "--report", "first.html", "--pdf", "first.pdf", *NAMES)
    assert ran.code == 0
    assert says(ran.out, "first.html", "first.pdf", "a.json")
    again = audited("report", "a.json", "--report", "again.html", "--pdf", "again.pdf")
    assert again.code == 0
    assert Path("again.html").read_bytes() == Path("first.html").read_bytes()
    assert Path("again.pdf").read_bytes() == Path("first.pdf").read_bytes()
    assert ">women</bdi>" in Path("again.html").read_text()
    assert audited("report", "a.json", "--set", "report.words.F=females").code == 0
    assert ">females</bdi>" in Path("a.html").read_text()  # next to the JSON


def test_the_overview_of_several_labels_is_made_again_with_its_pages(audited):
    both = [*AUDIT, "--label", "y2", "--score", "p"]
    frame_of(["F", "M"]).assign(y2=lambda f: 1 - f["y"]).to_csv("s.csv", index=False)
    assert audited(*both, "--out", "all.json", "--set", "audit.no_finding=none of the labels").code == 0
    assert audited("report", "all.json", "--report", "all.html").code == 0
    assert {path.name for path in Path().glob("all*.html")} == {"all.html", "all-y.html", "all-y2.html"}
    assert "Underdiagnosis" in Path("all.html").read_text()


def test_the_report_of_a_repair_is_printed_from_its_folder(repaired):
    assert repaired("report", "repaired", "--pdf", "short.pdf", "--report", "copy.html").code == 0
    assert Path("copy.html").read_bytes() == Path("repaired/report.html").read_bytes()
    short = Path("short.pdf").read_text()
    assert "data-paper" in short
    assert "Who is better and who is worse" in short
    assert "<script" not in short
    for more, facts in (([], ("repaired/report.html", "--pdf")), (["--pdf", "b.pdf", *NAMES], ("report.words",))):
        ran = repaired("report", "repaired", *more)
        assert ran.code == 2
        assert says(" ".join(ran.err.split()), *facts)


def test_the_overview_of_a_repair_of_several_labels_is_printed(audited):
    frame_of(["F", "M"]).assign(y2=lambda f: 1 - f["y"], p2=lambda f: 1 - f["p"]).to_csv("s.csv", index=False)
    labels = [*REPAIR, "--label", "y2", "--score", "p2", "--out", "repaired", "--pdf", "at_once.pdf"]
    ran = audited(*labels)
    assert ran.code == 0, ran.err
    assert "<a><bdi>y2</bdi></a>" in Path("at_once.pdf").read_text()
    page = Path("repaired/report.html")
    page.write_text(page.read_text().replace("</main>", "<iframe src='file:///etc/hostname'></iframe></main>"))
    ran = audited("report", "repaired", "--pdf", "b.pdf")
    assert (ran.code, Path("b.pdf").exists()) == (2, False)
    assert says(ran.err, "repaired/report.html", "<iframe", "line")


SCRIPT = "document.body.append('EFFECT')"
ATTACKS = {
    "a script in capitals": ("<main>", f"<SCRIPT>{SCRIPT}</SCRIPT><main>"),
    "a script whose end has a blank": ("<main>", f"<script>{SCRIPT}</script ><main>"),
    "an event": ("<main>", f'<svg onload="{SCRIPT}"></svg><main>'),
    "an unclosed script": ("</main>", f"</main><script>{SCRIPT}"),
    "a head in a comment": ("<head>", f"<!-- <head> --><SCRIPT>{SCRIPT}</SCRIPT><head>"),
    "a frame": ("<main>", "<iframe src='file:///EFFECT'></iframe><main>"),
    "an attachment": ("</head>", "<link rel=attachment href='file:///EFFECT'></head>"),
    "an image": ("<main>", "<img src='file:///EFFECT'><main>"),
    "a style": ("</head>", "<style>p { background: url(file:///EFFECT) }</style></head>"),
    "another address": ("<head>", "<head><meta http-equiv=refresh content='0; url=file:///EFFECT'>"),
    "a base": ("<head>", "<head><base href='file:///EFFECT'>"),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_a_stranger_put_into_a_report_reaches_no_printer(repaired, attack: str):
    page, own_policy = Path("repaired/report.html"), re.compile('<meta http-equiv="Content-Security-Policy"[^>]*>')
    page.write_text(own_policy.sub("", page.read_text()).replace(*ATTACKS[attack], 1))
    changed = repaired("report", "repaired", "--pdf", "a.pdf")
    assert (changed.code, Path("a.pdf").exists()) == (2, False)
    assert says(changed.err, "report.html", "SHA-256", "run.json")
    seal(Path("repaired"), run_of(Path("repaired")))  # as a stranger would, who can write checksums too
    sealed = repaired("report", "repaired", "--pdf", "a.pdf")
    assert "Traceback" not in sealed.err
    if sealed.code == 0:
        assert "EFFECT" not in Path("a.pdf").read_text()
        assert "Content-Security-Policy" in Path("a.pdf").read_text()
    else:
        assert (sealed.code, Path("a.pdf").exists()) == (2, False)
        assert says(sealed.err, "repaired/report.html", "line")


def test_hostile_values_in_the_data_are_text_on_every_page(audited):
    frame_of(HOSTILE[:3]).to_csv("s.csv", index=False)
    data = [*AUDIT[1:-1], HOSTILE[1]]
    assert audited("audit", *data, "--out", "a.json").code == 0
    assert audited("report", "a.json", "--report", "a.html", "--pdf", "a.pdf").code == 0
    assert audited("debias", *data, *RULE, "--out", "repaired").code == 0
    assert audited("report", "repaired", "--pdf", "b.pdf").code == 0
    notebook = eq.read_audit("a.json")._repr_html_()
    for page in (*(Path(name).read_text() for name in ("a.html", "a.pdf", "b.pdf")), notebook):
        assert HOSTILE[1] not in page
        assert "&lt;script&gt;" in page


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["report", "none.json"], ("none.json",)),
        (["report", "s.csv"], ("s.csv", "JSON")),
        (["report", "empty"], ("empty", "report.html")),
        (["report", "other.json"], ("other.json", "equipoise.study")),
        (["report", "other.json", "--pdf", "a.html"], ("--pdf", "a.html", "a.pdf")),
        ([*AUDIT, "--report", "a.json"], ("--report", "a.json", "a.html")),
        ([*AUDIT, "--out", "a.html"], ("--out", "--report a.html")),
        ([*AUDIT, "--out", "a.pdf"], ("--out", "--pdf a.pdf")),
    ],
)
def test_another_file_or_ending_is_refused_with_what_to_use_instead(audited, tmp_path, arguments: list[str], facts: tuple[str, ...]):
    (tmp_path / "empty").mkdir()
    (tmp_path / "other.json").write_text(json.dumps({"schema": "equipoise.study"}))
    before = {path.name for path in tmp_path.iterdir()}
    code, out, err = audited(*arguments)
    assert (code, out) == (2, "")
    assert says(" ".join(err.split()), *facts)
    assert "Traceback" not in err
    assert {path.name for path in tmp_path.iterdir()} == before


def test_without_a_printer_an_audit_with_a_pdf_stops_before_any_work(audited, monkeypatch):
    monkeypatch.setattr(pdf, "browser", lambda: None)
    monkeypatch.setattr(pdf.importlib.util, "find_spec", lambda *_: None)
    code, out, err = audited(*AUDIT, "--out", "a.json", "--pdf", "a.pdf")
    assert (code, out) == (2, "")
    assert says(err, "Chromium", "weasyprint")
    assert not Path("a.json").exists()


def test_a_repair_prints_its_pdf_at_once(audited):
    ran = audited(*REPAIR, "--out", "repaired", "--pdf", "repaired.pdf")
    assert ran.code == 0
    assert says(ran.out, "repaired.pdf")
    assert audited("report", "repaired", "--pdf", "again.pdf").code == 0
    assert Path("repaired.pdf").read_bytes() == Path("again.pdf").read_bytes()
    dry = audited(*REPAIR, "--out", "other", "--pdf", "other.pdf", "--dry-run")
    assert (dry.code, Path("other.pdf").exists()) == (0, False)


def test_a_repair_whose_pdf_fails_is_kept_and_says_how_to_print_it(audited, monkeypatch, tmp_path):
    repair = [*REPAIR, "--out", "repaired"]
    wrong = audited(*repair, "--pdf", "repaired.html")
    assert wrong.code == 2
    assert says(wrong.err, "--pdf", "repaired.html", "repaired.pdf")
    monkeypatch.setenv(pdf.VARIABLE, str(tmp_path / "none"))
    assert audited(*repair, "--pdf", "repaired.pdf").code == 2
    assert not Path("repaired").exists()
    monkeypatch.setenv(pdf.VARIABLE, str(browser_at(tmp_path / "broken", FAILS)))
    ran = audited(*repair, "--pdf", "repaired.pdf")
    assert ran.code == 1
    assert says(ran.err, "no display", "equipoise report repaired --pdf repaired.pdf")
    assert Path("repaired/report.html").exists()


@pytest.mark.parametrize("labels", [1, 2])
def test_no_name_in_a_table_can_control_the_terminal_that_shows_the_readme(audited, labels: int):
    label, score, group, place = "y\x1b]0;title\x07\nRun: rm", "p\x1b[1m", "F\x1b[31m", Path("out\x1b[5m")
    frame = frame_of([group, "M"]).rename(columns={"y": label, "p": score})
    frame.assign(y2=frame[label], p2=frame[score]).to_csv("s.csv", index=False)
    named = ["--label", label, "--score", score, "--label", "y2", "--score", "p2"][: 4 * labels]
    made = audited("debias", "s.csv", *named, "--group", "sex", "--reference", "M", *RULE, "--out", place)
    assert made.code == 0, made.err
    for readme in place.rglob("README.txt"):
        text = readme.read_text(encoding="utf-8")
        assert not set(text) & {"\x1b", "\x07"}
        assert "\nRun: rm" not in text
    assert says((place / "README.txt").read_text(encoding="utf-8"), r"y\x1b]0;title\x07\nRun: rm")
