"""The report of an audit: who is worse off comes first, the numbers are those of the audit, and names are text."""

import base64
import hashlib
import json
import re
import subprocess
import sys
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
from lxml import html

from equipoise.comparison import Provenance
from equipoise.data import LabelKind, Scores
from equipoise.errors import BadInput
from equipoise.measures import AuditSpec, Threshold, audit_labels
from equipoise.measures.audit import audit_from
from equipoise.report import write_audit_page
from equipoise.report.audit_pages import MOST_GROUPS, calibration_panels
from equipoise.report.audits import LabelSections
from equipoise.report.text import MINUS, amount
from equipoise.report.wording.audits import ALARMS, MISSED, answer, harms, largest_words, overview_answer
from support.audits import HOSTILE, audit_of, frame_of
from support.facts import says
from support.pages import audit_page

NAMES = {"F": "women", "M": "men"}


def shifted(missed: float = 0.0, alarms: float = 0.0, n: int = 600, groups: tuple[str, ...] = ("F", "M"), **more) -> pd.DataFrame:
    """Scores of a classifier that misses so many more findings in the first group, and falsely flags so many more of it."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, n)
    sex = rng.choice(groups, n)
    right = rng.random(n) < 0.85 - missed * ((sex == groups[0]) & (y == 1)) - alarms * ((sex == groups[0]) & (y == 0))
    score = np.where(right == (y == 1), rng.uniform(0.5, 1, n), rng.uniform(0, 0.5, n))
    return pd.DataFrame({"sex": sex, "y": y, "p": score} | {name: make(rng, n) for name, make in more.items()})


@pytest.fixture(scope="module")
def found():
    """An audit in which women are missed more often, with a second attribute."""
    frame = shifted(0.3, n=900, age=lambda rng, n: rng.choice(["old", "young"], n))
    return audit_of(frame, group=["sex", "age"], reference=["M", "old"])


def test_missed_findings_come_before_false_alarms_and_are_counted_of_a_thousand(found):
    audit = audit_of(shifted(0.3, 0.25, n=900), reference="M")[1]
    style, text = answer(audit, NAMES)
    gaps = audit.gaps.set_index("measure")["value"]
    assert style == "harm"
    assert says(text, "women", "men", amount(-gaps["eod"], "thousand0"), amount(gaps["fpr_gap"], "thousand0"))
    assert text.index("missed") < text.index("flagged")
    assert [kind for kind, _, _ in harms(audit)] == [MISSED, ALARMS]
    assert {attribute for _, attribute, _ in harms(found[1])[:1]} == {"sex"}  # not an intersection


def test_the_reference_is_named_where_it_is_worse_off():
    [(kind, _, more)] = harms(audit_of(shifted(0.3), reference="F")[1])
    assert (more.group, more.reference, kind) == ("F", "M", MISSED)
    assert more.low < more.value < more.high


def test_no_clear_difference_states_what_could_be_missed_and_few_patients_are_said():
    audit = audit_of(shifted(n=200), reference="M")[1]
    style, text = answer(audit)
    assert style == "unchanged"
    eod = audit.gaps[audit.gaps["measure"] == "eod"]["detectable"].max()
    assert says(text, f"{100 * eod:.1f}", audit.comparisons, "does not show that there is none", "before adjustment")
    few = audit_of(pd.concat([frame_of(["M"], 40), pd.DataFrame({"sex": "F", "y": [1, 0], "p": 0.5})]), reference="M")[1]
    assert says(answer(few)[1].lower(), "insufficient")


def test_errors_per_thousand_on_the_page_are_those_of_the_audit(found):
    page = html.fromstring(audit_page(found[1], NAMES))
    rows = {row.xpath("./th/bdi")[0].text: row for row in page.xpath("//section[@id='worse']//table[caption/bdi='sex']/tbody/tr")}
    for group, name in NAMES.items():
        told = [cell.text_content().split()[0].replace(MINUS, "-") for cell in rows[name].xpath("./td") if cell.text_content().strip()]
        rates = found[1].groups.loc[group]
        assert told[0] == f"{1000 * rates['fnr']:.0f}"
        assert told[-2 if group == "F" else -1] == f"{1000 * rates['fpr']:.0f}"


def test_calibration_is_drawn_from_parts_of_at_least_five_patients_and_is_right(found):
    scores, audit = found
    panels = calibration_panels(LabelSections(audit.only), "sex")
    assert len(panels) == 2
    for panel, group in zip(panels, audit.groups.index[audit.groups["attribute"] == "sex"], strict=True):
        points = [(float(x) / 100, float(y) / 100) for x, y in re.findall(r"score ([\d.]+)%, share ([\d.]+)%", panel.says)]
        own = scores.attributes[0].codes == scores.attributes[0].levels.index(group)
        assert len(points) >= 4
        mean = np.average([y for _, y in points])
        assert mean == pytest.approx(scores.y[own].mean(), abs=0.1)
        assert points == sorted(points)


def test_the_page_from_the_json_is_the_same_page(found):
    origin = Provenance.now(arguments=["equipoise", "audit", "some.csv"])
    again = audit_from(json.loads(json.dumps(found[1].to_dict())))
    assert audit_page(again, NAMES, Provenance.of(asdict(origin))) == audit_page(found[1], NAMES, origin)


def test_the_data_of_the_slider_single_out_nobody(found):
    page = html.fromstring(audit_page(found[1]))
    [data] = page.xpath("//script[@id='page-data']")
    moved = json.loads(data.text)["threshold"]
    cells = [cell for each in moved["attributes"] for group in each["groups"] for cell in group["cells"].values()]
    assert len(cells) >= 4
    for cuts, above in cells:
        between = -np.diff([*above, 0])
        assert ((between == 0) | (between >= 5)).all()
        assert cuts == sorted(cuts)


def test_it_says_where_it_comes_from_and_can_be_signed(tmp_path, found):
    table = tmp_path / "rows.csv"
    table.write_text("a\n1\n")
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "one.csv").write_text("a\n")
    origin = Provenance.now(arguments=["equipoise", "audit", str(table)], files=[table, folder])
    page = audit_page(found[1], provenance=origin)
    assert says(page, "equipoise audit rows.csv", hashlib.sha256(b"a\n1\n").hexdigest())
    assert str(tmp_path) not in page
    assert {"signoff", "limits", "method"} <= {section.get("id") for section in html.fromstring(page).xpath("//section")}
    assert any("1 files" in name for name in origin.hashes)
    assert Provenance.of(None) is None


def test_names_of_a_hostile_file_are_text_and_only_the_pages_own_script_may_run():
    audit = audit_of(frame_of(HOSTILE, column='"><img src=x onerror=alert(1)>'), name="</title><script>alert(2)</script>")[1]
    for paper in (False, True):
        text = audit_page(audit, paper=paper)
        page = html.fromstring(text)
        assert page.xpath("//img|//*[@onerror]") == []
        scripts = page.xpath("//script[not(@type)]")
        policy = page.xpath("//meta[@http-equiv='Content-Security-Policy']/@content")[0]
        assert len(scripts) == (0 if paper else 1)
        for script in scripts:
            assert base64.b64encode(hashlib.sha256(script.text.encode()).digest()).decode() in policy
        assert "default-src 'none'" in policy
        assert not re.search(r"(src|href)=[\"']?(https?:)?//", text)
        assert "\x1b" not in text


def test_paper_is_short_and_needs_no_script(found):
    whole, short = audit_page(found[1]), audit_page(found[1], paper=True)
    assert "<script" not in short
    assert len(short) < len(whole)
    sections = html.fromstring(short).xpath("//section/@id")
    assert "threshold" not in sections
    assert {"verdict", "worse", "gaps", "groups", "signoff", "limits", "calibration", "curves", "method"} <= set(sections)


def test_many_groups_are_in_the_explorer_and_not_drawn_one_by_one():
    names = [f"g{k:03}" for k in range(MOST_GROUPS + 5)]
    text = audit_page(audit_of(frame_of(names, 30))[1])
    page = html.fromstring(text)
    assert page.xpath("//section[@id='groups']//*[contains(@class, 'forest')]") == []
    rows = json.loads(page.xpath("//script[@id='page-data']")[0].text)["subgroups"]["groups"]
    assert [row["name"] for row in rows] == names


def test_a_matrix_has_the_gap_of_each_label_and_group_and_marks_the_clear_ones():
    frames = {"Effusion": shifted(0.35), "Mass": shifted()}
    scores = {label: Scores.from_frame(f, label="y", score="p", group="sex", reference="M") for label, f in frames.items()}
    audits = audit_labels(scores, dict.fromkeys(scores, Threshold(0.5)), AuditSpec(), LabelKind.LABELS, "vendor.csv")
    page = html.fromstring(audit_page(audits, NAMES, links={"Effusion": "a.html"}))
    [table] = page.xpath("//table[contains(@class, 'matrix')][caption/span='eod']")
    cells = {row.xpath("string(./th)"): row.xpath("./td")[0] for row in table.xpath("./tbody/tr")}
    for label, cell in cells.items():
        gap = audits[label]["eod"]
        assert cell.text_content().split()[0].replace(MINUS, "-") == f"{100 * gap.value:+.1f}"
        assert ("●" in cell.text_content()) == gap.clear
    assert audits["Effusion"]["eod"].clear
    assert page.xpath("//a/@href") == ["a.html"] * len(page.xpath("//a[bdi='Effusion']"))


def test_the_overview_states_the_threshold_and_names_the_labels_in_which_no_patient_is_flagged():
    scores = {label: Scores.from_frame(shifted(), label="y", score="p", group="sex", reference="M") for label in ("Effusion", "Hernia")}
    rules = {"Effusion": Threshold(0.5), "Hernia": Threshold(0.9999)}
    audits = audit_labels(scores, rules, AuditSpec(), LabelKind.LABELS, "vendor.csv")
    page = html.fromstring(audit_page(audits))
    assert says(page.xpath("string(//p[@id='decided'])"), "0.5", "0.9999")
    assert says(page.xpath("string(//section[@id='labels']//details)"), "before adjustment", "no patient column")
    warning = page.xpath("string(//*[@id='unflagged'])")
    assert says(warning, "1 of 2 labels", "Hernia", "--threshold")
    assert "Effusion" not in warning
    [row] = page.xpath("//table[contains(@class, 'labels')]/tbody/tr[th//text()='Hernia']")
    assert "No clear difference" not in row.text_content()
    single = html.fromstring(audit_page(audits["Hernia"]))
    assert single.xpath("//p[@data-outcome]/@data-outcome") == ["unclear"]
    assert says(single.xpath("string(//*[@id='unflagged'])"), "0.0%", "--threshold")
    assert not html.fromstring(audit_page(audits["Effusion"])).xpath("//*[@id='unflagged']")


def test_several_labels_that_differ_in_another_measure_only_are_not_said_to_have_no_difference():
    scores = Scores.from_frame(shifted(0.3, n=900), label="y", score="p", group="sex", reference="M")
    audits = audit_labels({"Mass": scores}, {"Mass": Threshold(0.5)}, AuditSpec(measures=("npv_gap",)), LabelKind.LABELS, "vendor.csv")
    assert audits.findings
    style, text = overview_answer(audits)
    assert (style, text.startswith("A difference, not in missed findings")) == ("unclear", True)


def test_the_largest_difference_says_among_which_it_is(found):
    assert largest_words(found[1]) == "largest clear difference among single attributes"
    page = html.fromstring(audit_page(found[1]))
    assert any(
        text.startswith("Largest clear difference among single attributes") for text in page.xpath("//span[@class='fact-name']/text()")
    )
    audit, gaps = found[1], found[1].gaps
    crossed = gaps["clear"] & (gaps["attribute"] == "sex & age")
    assert largest_words(replace(audit.only, gaps=gaps.assign(clear=crossed))) == "largest clear difference, an intersection"
    one = replace(audit.only, gaps=gaps[gaps["attribute"] == "sex"].assign(clear=False), intersections=())
    assert largest_words(one) == "largest difference, not clear"


def test_the_legend_explains_mark_interval_unit_and_detectable(found):
    page = html.fromstring(audit_page(found[1]))
    legend = page.xpath("string(//section[@id='gaps']/details)")
    assert says(legend, "adjusted", "excludes zero", "chance of any false mark", "80% of samples of this size, before adjustment")
    assert says(page.xpath("string(//section[@id='groups']/details)"), "By row: no patient column was named")
    frame = shifted(0.3).assign(patient=lambda rows: [f"p{k}" for k in range(len(rows))])
    assert "no patient column" not in audit_page(audit_of(frame, reference="M", patient="patient")[1])


def test_an_unknown_group_among_the_words_is_an_error(found, tmp_path):
    with pytest.raises(BadInput, match="W"):
        write_audit_page(found[1], tmp_path / "audit.html", group_names={"W": "women"})
    assert not (tmp_path / "audit.html").exists()


def test_the_page_of_scores_needs_no_torch(tmp_path):
    shifted(n=60).to_csv(tmp_path / "s.csv", index=False)
    code = (
        "import sys, pandas as pd, equipoise as eq; f = pd.read_csv('s.csv');"
        "eq.Scores.from_frame(f, label='y', score='p', group='sex');"
        "eq.audit(eq.Scores.from_frame(f, label='y', score='p', group='sex')).report('a.html'); print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True).stdout.strip() == "False"
