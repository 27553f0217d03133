"""The report of a repair: sentences agree with the numbers, names are escaped, and the file is self-contained and written as a whole."""

import base64
import hashlib
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from equipoise.comparison import below_upper_bound
from equipoise.errors import BadInput
from equipoise.measures import GAPS, MEASURES, Measure
from equipoise.report import why_words
from equipoise.report.document import Table, text_of
from equipoise.report.model_card import cards
from equipoise.report.pages import script_data
from equipoise.report.repairs import REPAIR_DECISIONS, probe_parts
from equipoise.report.text import amount, interval, p_value_words, span
from equipoise.report.wording.audits import READ_IS_NOT_USED
from equipoise.report.wording.names import share_words, upper_bound_words
from equipoise.report.wording.repairs import goal_words, repair_answer
from support.cases import HOSTILE, HOSTILE_COLUMN, HOSTILE_NOTE, small_case, some_probes
from support.facts import facts, says
from support.goals import paper_goal
from support.pages import repair_page
from support.read_html import Read

LEVELLING = "Levelling"  # the word for a difference that closed because a group got worse
UNKNOWN = amount(math.nan)


def _read(case, **options) -> Read:
    return Read(repair_page(case, **options))


def test_the_verdict_says_before_and_after_with_intervals():
    case = small_case(rows=2000)
    found = case.found
    read = _read(case)
    words = read.words("verdict")
    assert says(words, share_words("eod")[0].strip(), "pneumonia", "2,000 rows")
    for gap in (found.gap_before, found.gap_after, found.gap_change):
        assert says(words, amount(abs(gap.value), "size"), amount(abs(gap.low), "size"), amount(abs(gap.high), "size"))
    assert found.seen == read.conclusion == "smaller"
    for each, group in zip((found.rate_of("F"), found.rate_of("M")), ("F", "M"), strict=True):
        assert says(words, *(f"{amount(side.value)} in {group}" for side in each))


def test_the_verdict_names_who_got_worse_and_by_how_much():
    case = small_case(rows=3000, harm=1.0, cure=0.3, goal=paper_goal("eod", min_performance=0.6), methods=("bias-gda",))
    read = _read(case)
    fell = next(s for s in case.found.worse if (s.group, s.rate) == ("M", "tpr"))
    lost = amount(fell.before - fell.after, "size")
    assert says(read.words("verdict"), "M", amount(fell.before), amount(fell.after))
    assert read.has("levelling")
    assert not read.has("levelling-none")
    assert says(read.words("affected"), f"{lost} points", "M")


def test_a_repair_that_harms_nobody_says_so():
    case = small_case(rows=1000, methods=("bias-gda",))
    scores = case.original.test
    helped = (scores.groups == "F") & (scores.y == 1) & (np.arange(len(scores)) % 2 == 0)
    after = replace(scores, score=np.where(helped, 0.99, scores.score))
    repair = replace(case.result, test=after, candidate=replace(case.result.candidate, rule=case.original.candidate.rule))
    read = _read(replace(case, classifiers=(case.original, repair)))
    assert read.has("levelling-none")
    assert not read.has("levelling")
    assert LEVELLING not in read.words("verdict") + read.words("affected")
    assert says(read.words("affected"), "either group worse in sensitivity")
    assert "other respects" not in read.words("affected")


def test_a_gap_that_closed_at_the_cost_of_false_alarms_names_them_for_all_and_then_for_the_group():
    case = small_case(rows=1000, methods=("bias-gda",))
    scores = case.original.test
    changed = (scores.groups == "F") & (np.arange(len(scores)) % np.where(scores.y == 1, 2, 5) == 0)
    repair = replace(
        case.result,
        test=replace(scores, score=np.where(changed, 0.99, scores.score)),
        candidate=replace(case.result.candidate, rule=case.original.candidate.rule),
    )
    case = replace(case, classifiers=(case.original, repair))
    read, by_group = _read(case), {row.group: row for row in case.found.balances["sex"]}
    everybody, women = (f"{amount(by_group[group].alarms.value, 'thousand0')} more false alarms" for group in (None, "F"))
    assert by_group["F"].alarms.low > 0
    answer = repair_answer(case)
    assert answer.index("sensitivity") < answer.index(everybody) < answer.index(women)
    assert answer in read.words("verdict")
    assert read.has("levelling-none")
    assert says(read.words("affected"), "worse in sensitivity", "worse in other respects")
    assert f"**{repair_answer(case)}**".replace("*", "") in cards(case)["card.md"].replace("*", "")


def test_an_interval_that_includes_zero_is_said():
    case = small_case(rows=80, cure=0.5, seed=4, methods=("bias-gda",))
    assert case.found.seen == "unclear"
    assert _read(case).conclusion == "unclear"


def test_a_test_part_that_contradicts_validation_is_said():
    case = small_case(rows=1000, methods=("bias-gda",))
    original = replace(case.original, test=case.result.test)
    repair = replace(case.result, test=case.original.test)
    case = replace(case, classifiers=(original, repair))
    found, read = case.found, _read(case)
    assert found.contradicts
    assert read.conclusion == "larger"
    assert says(read.words("verdict"), amount(found.valid_before, "points"), amount(found.valid_after, "points"))


def test_a_repair_that_changes_nothing_is_said():
    case = small_case(methods=("bias-gda",))
    same = replace(case.original, candidate=replace(case.original.candidate, method="bias-gda"))
    read = _read(replace(case, classifiers=(case.original, same)))
    assert read.conclusion == "unchanged"
    assert says(read.words("verdict"), f"0 of {len(case.result.test):,}")
    assert not {"gain", "loss"} & {a.get("class") for tag, a in read.tags if tag == "p"}


def test_the_original_has_no_interval_of_a_change():
    case = small_case(rows=80, methods=("bias-gda",))
    same = replace(case.original, candidate=replace(case.original.candidate, method="bias-gda"))
    kept = replace(case, classifiers=(case.original, same))
    words, card = _read(kept).words("affected"), cards(kept)["card.md"]
    assert "no change" in words
    assert "intervals of the change" not in words
    change = kept.found.gap_change
    assert change.low < 0 < change.high
    assert interval(change.value, change.low, change.high, "+") not in card
    assert card.count("| no change |") == len(kept.found.shifts)
    moved = replace(same, candidate=replace(same.candidate, rule=replace(same.candidate.rule, value=same.candidate.rule.value + 1e-9)))
    assert "intervals of the change" in _read(replace(case, classifiers=(case.original, moved))).words("affected")


def test_few_patients_are_insufficient_data_not_zero():
    case = small_case(rows=60, groups=("M", "F", "X"), shares=(0.6, 0.38, 0.02), methods=("bias-gda",), patients=False)
    read = _read(case)
    assert UNKNOWN in read.words("groups")
    assert says(read.words("gaps"), 5, "positives", "'X'")
    assert read.conclusion != "insufficient"
    assert _read(small_case(rows=40, shares=(0.95, 0.05), methods=("bias-gda",), seed=3)).conclusion == "insufficient"


def test_a_goal_that_is_not_reached_is_said_with_the_reason_and_in_grey():
    case = small_case(goal=paper_goal("eod", min_performance=0.99), methods=("bias-gda",))
    read = _read(case)
    assert not case.result.candidate.met_in_sample
    assert why_words(case.result.candidate.why) in read.words("method")
    trace = case.result.candidate.trace
    [grey] = [text for kind, text in read.paragraphs if kind == "fitted" and "99.0%" in text]
    assert says(grey, amount(trace["performance"].iloc[case.result.candidate.chosen]))


def test_a_rule_by_lot_that_needs_the_group_is_said():
    read = _read(small_case(chosen=3))
    assert says(read.words("verdict"), "needs", "sex", "randomised")
    assert says(read.words("affected"), "randomised")
    assert not says(_read(small_case()).words("verdict"), "randomised")


KINDS = (
    {"performance": "balanced_accuracy", "min_performance": 0.6},
    {"performance": "f1", "max_gap": 0.1},
    {"performance": "accuracy", "min_performance": 0.5, "max_gap": 0.2},
)


@pytest.mark.parametrize(("measure", "kind"), [(measure, k % len(KINDS)) for k, measure in enumerate(GAPS)])
def test_every_measure_and_kind_of_goal_has_its_words(measure: str, kind: int):
    goal = paper_goal(measure, **KINDS[kind])
    words = _read(small_case(rows=200, goal=goal, methods=("bias-gda",))).words("verdict")
    assert goal_words(goal) in words
    assert "insufficient" not in words


def test_a_measure_that_was_added_has_a_page(monkeypatch):
    monkeypatch.setitem(MEASURES, "my_gap", Measure("my_gap", "", "sensitivity - false positive rate", rates={"tpr": 1.0, "fpr": -1.0}))
    words = _read(small_case(rows=200, goal=paper_goal("my_gap", min_performance=0.6), methods=("bias-gda",))).words("verdict")
    assert says(words, "sensitivity - false positive rate")


def test_no_page_speaks_of_fair():
    second, harm = {"second": True, "rows": 300, "methods": ("bias-gda",)}, {"harm": 1.0, "rows": 200, "methods": ("bias-gda",)}
    for options in ({}, {"chosen": 3}, second, harm):  # the first three are the cases of other tests, audited once
        assert not re.search(r"\bfair", repair_page(small_case(**options)), re.IGNORECASE)


def test_tables_hold_the_numbers_of_the_findings():
    case = small_case(second=True, missing=0.05, pictures=True)
    found = case.found
    read = _read(case)
    assert f"{amount(found.gap_after.detectable, 'size')}" in read.words("gaps")
    for row in found.cohort["sex"]:
        assert f"{row.test.rows:,}" in read.words("cohort")
    assert says(read.words("cohort"), "sex", f"{100 * (case.original.test.attribute.codes < 0).mean():.1f}%")
    for method in found.methods:
        assert amount(method.gap.value, "points") in read.words("explorer")
    for counts in found.affected[0].counts:
        assert f"{counts.detected:,.0f}" in read.words("affected")
    assert "SHA-256 " + "9f" * 32 in read.words("method")
    assert case.provenance.command in read.words("method")
    assert [limit for limit in case.provenance.limits if not says(read.words("method"), limit)] == []
    assert case.result.candidate.rule.describe() in read.words("method")


def test_better_and_worse_are_counted_per_thousand_of_each_group():
    case = small_case(rows=2000)
    read, rows = _read(case), case.found.balances["sex"]
    words = read.words("affected")
    for row in rows:
        assert says(
            words,
            f"{amount(row.missed_before, 'thousand0')} → {amount(row.missed_after, 'thousand0')}",
            amount(row.corrected.value, "thousand0"),
            amount(row.spoiled.value, "thousand0"),
        )
    women = next(row for row in rows if row.group == "F")
    assert women.missed.high < 0
    [better] = [text for kind, text in read.paragraphs if kind == "gain"]
    assert says(better, "F", amount(-women.missed.value, "thousand0"), "1,000")


def test_what_is_for_engineers_is_folded():
    html = repair_page(small_case(pictures=True), thumbnails=True)
    order = re.findall(r'<section id="(\w+)"( class="folded")?>', html)
    assert [name for name, folded in order if folded] == ["explorer", "trajectories", "curves", "separation", "images", "method"]
    assert [name for name, folded in order if not folded] == [
        "verdict",
        "affected",
        "options",
        "gaps",
        "groups",
        "cohort",
        "signoff",
        "limits",
    ]


def test_a_measure_that_mirrors_another_is_shown_once_under_its_name():
    words = _read(small_case(rows=300, goal=paper_goal("fnr_gap", min_performance=0.6), methods=("bias-gda",))).words("gaps")
    assert says(words, "fnr_gap, mirrored by eod", "fpr_gap, mirrored by tnr_gap")
    assert words.count("eod") == words.count("tnr_gap") == 1


def test_the_words_of_the_user_stand_for_groups_everywhere():
    case = small_case(rows=300, second=True, methods=("bias-gda",))
    html = repair_page(case, names={"F": "women", "M": "men"})
    assert "women &amp; 60 and over" in html
    assert not re.search(r">[FM]( &amp;|<)", html)
    with pytest.raises(BadInput, match=facts("female", "F")):
        repair_page(case, names={"female": "women"})


def test_there_is_a_block_to_sign():
    words = _read(small_case(rows=200, methods=("bias-gda",))).words("signoff")
    assert says(words, "Decision", "Date", "Next audit", "Signature", *REPAIR_DECISIONS)


def test_every_element_is_closed_and_every_figure_has_words():
    read = _read(small_case(second=True, missing=0.05, pictures=True), thumbnails=True)
    assert read.open == []
    figures = [attributes for tag, attributes in read.tags if tag == "svg" and attributes.get("role") == "img"]
    assert len(figures) > 30
    assert all(attributes.get("aria-label") for attributes in figures)
    assert all(attributes.get("alt") for tag, attributes in read.tags if tag == "img")
    ids = [attributes["id"] for _, attributes in read.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    anchors = {attributes["href"][1:] for tag, attributes in read.tags if tag == "a"}
    assert anchors <= set(ids)


def test_nothing_is_fetched_and_only_the_pages_own_script_may_run():
    html = repair_page(small_case(pictures=True), thumbnails=True)
    read = Read(html)
    for tag, attributes in read.tags:
        assert tag not in {"link", "iframe", "object", "embed", "base"}
        for name in ("src", "href"):
            value = attributes.get(name) or "#"
            assert value.startswith(("#", "data:image/png;base64,")), (tag, value)
        assert not [name for name in attributes if name.startswith("on")]
    assert "url(" not in html
    assert "@import" not in html
    policy = next(a["content"] for tag, a in read.tags if tag == "meta" and a.get("http-equiv") == "Content-Security-Policy")
    script = html.rsplit("<script>", 1)[1].split("</script>", 1)[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy


def test_hostile_names_are_escaped_shortened_and_listed_whole():
    html = repair_page(small_case(hostile=True, pictures=True), thumbnails=True)
    read = Read(html)
    assert [tag for tag, _ in read.tags].count("script") == 2
    assert not [a for tag, a in read.tags if tag == "img" and not (a["src"] or "").startswith("data:")]
    assert "b" not in {tag for tag, _ in read.tags}
    assert html.count(HOSTILE[3]) == 1  # once, in the list of names
    assert "\u202e" not in html
    assert HOSTILE_NOTE.replace("\u202e", "\\u202e") in read.words("method")
    assert "{{ 7 * 7 }}" in read.words("verdict")  # a template in a name is not run


def test_data_for_the_script_cannot_end_it():
    text = str(script_data({"a": "</script><!-- & \u2028", "b": [1.5, None]}))
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script><!-- & \u2028", "b": [1.5, None]}
    with pytest.raises(ValueError, match=facts("JSON")):
        script_data({"a": float("nan")})


def test_images_of_patients_are_in_it_only_if_allowed_and_ids_never():
    case = small_case(pictures=True)
    html = repair_page(case)
    assert not [row for row in case.original.test.ids if f">{row}<" in html]
    assert not [p for p in set(case.original.test.patients) if p in html]
    assert 'alt="Image ' not in html
    assert 'id="images"' in html  # of the units that were switched off
    allowed = repair_page(case, thumbnails=True)
    assert allowed.count('alt="Image ') == 12
    assert not [row for row in case.original.test.ids if f">{row}<" in allowed]
    assert not [p for p in set(case.original.test.patients) if p in allowed]
    few = small_case(rows=200, pictures=True, methods=("pruning",))
    assert 'id="images"' in repair_page(few)
    without = replace(few, thumbnails={}, classifiers=tuple(replace(r, units={}) for r in few.classifiers))
    assert 'id="images"' not in repair_page(without, thumbnails=True)


def test_the_same_case_gives_the_same_page():
    case = small_case(rows=300, methods=("bias-gda", "equalised-odds"))
    assert repair_page(replace(case)) == repair_page(replace(case))  # audited twice


def test_it_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch):
    path = tmp_path / "new" / "report.html"
    case = small_case(rows=100, methods=("bias-gda",))
    case.report(path)
    assert path.read_text(encoding="utf-8") == repair_page(case)
    path.write_text("old")
    broken = replace(
        case, classifiers=(case.original, replace(case.result, test=replace(case.result.test, ids=case.result.test.ids[::-1])))
    )
    with pytest.raises(BadInput):
        broken.report(path)
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


def test_a_test_part_with_one_label_still_has_a_page():
    case = small_case(rows=120, methods=("bias-gda",))
    negative = [replace(r.test, y=np.zeros_like(r.test.y)) for r in (case.original, case.result)]
    case = replace(case, classifiers=tuple(replace(each, test=test) for each, test in zip(case.classifiers, negative, strict=True)))
    read = _read(case)
    assert read.conclusion == "insufficient"
    goal, words = case.result.candidate.goal, read.words("verdict")
    assert words.count(amount(goal.min_performance)) == words.count(goal_words(goal))  # it is in the goal, and nothing is judged by it


def test_the_distance_to_the_best_rule_is_told_for_every_method():
    case = small_case(rows=2000)
    read = _read(case)
    words = read.words("explorer")
    assert says(words, "upper bound")
    for row in case.found.methods:
        assert upper_bound_words(row.below) in words
    chosen = case.result.candidate.trace.iloc[case.result.candidate.chosen]
    below = below_upper_bound(case.original.valid, case.result.candidate.goal, float(chosen["gap"]), float(chosen["performance"]))
    assert says(words, case.result.name, upper_bound_words(below, "balanced accuracy"))


def test_without_a_line_the_page_says_why_and_has_no_column_for_it():
    html = repair_page(small_case(goal=paper_goal("eod", "f1", min_performance=0.4), methods=("bias-gda",)))
    words = Read(html).words("explorer")
    assert says(words, "upper bound")  # why there is none
    assert upper_bound_words(0.1).split()[-1] not in words
    assert 'data-head="upper bound"' not in html


def test_p_values_are_next_to_the_differences():
    case = small_case(rows=2000)
    found = case.found
    read = _read(case)
    [(before, after)] = found.gaps["sex"][case.goal.measure].values()
    both = " → ".join(p_value_words(side.p_adjusted) for side in (before, after))
    assert both in read.words("gaps")
    assert span(after.simultaneous_low, after.simultaneous_high, "points") in read.words("gaps")


def test_probes_are_shown_where_they_were_asked_for():
    case = small_case(rows=200, methods=("bias-gda",))
    assert "probes" not in _read(case).text
    read = _read(replace(case, probes=some_probes()))
    words = read.words("probes")
    assert READ_IS_NOT_USED in words
    assert says(words.replace("wide0", "wide 0").replace("0.6200", "0.620 0"), "inputs", "0.600 0.580 to 0.620", "0.500 0.480 to 0.520")
    assert read.open == []


def test_probes_of_hostile_names_are_text():
    case = small_case(hostile=True, methods=("pruning",))
    html = repair_page(replace(case, probes=some_probes(HOSTILE_COLUMN, ("inputs", HOSTILE[1], "output"))))
    assert Read(html).words("probes")
    assert "<img src=x" not in html
    assert "<script>alert" not in html


def _probed(probes) -> list[Table]:
    first, folded, *_ = probe_parts(probes)
    return [first, *folded.parts]


def test_probes_stand_side_by_side_layer_by_layer():
    tables = _probed(some_probes())
    assert [table.blocks[0].means for table in tables] == ["among all patients", "among those with the finding", "among those without it"]
    everybody = tables[0].blocks[0].rows
    assert [(text_of(layer.words), layer.means) for layer, *_ in everybody] == [("inputs", "2 wide"), ("2", "3 wide"), ("output", "4 wide")]
    assert [before.value.value for _, before, _ in everybody] == pytest.approx([0.6, 0.64, 0.68])
    assert [after.value.value for _, _, after in everybody] == pytest.approx([0.5, 0.54, 0.58])
    assert tables[0].scale.low <= 0.48


def test_a_layer_that_only_the_repaired_network_has_stays_empty_before():
    probes = some_probes(layers=("inputs", "2", "output"), after=("inputs", "2", "head", "output"))
    rows = {text_of(layer.words): values for layer, *values in _probed(probes)[0].blocks[0].rows}
    assert list(rows) == ["inputs", "2", "head", "output"]
    assert math.isnan(rows["head"][0].value.value)
    assert rows["head"][1].value.value == pytest.approx(0.58)
