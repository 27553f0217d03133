"""Values in a notebook: short HTML that states the conclusion and holds the numbers, in which no name becomes markup."""

import pytest

from equipoise.report.wording.audits import answer
from equipoise.report.wording.repairs import outcome_words
from support.audits import HOSTILE, audit_of, frame_of, joined
from support.cases import small_case
from support.read_html import Read

ALLOWED = {"div", "p", "strong", "table", "caption", "thead", "tbody", "tr", "th", "td"}


def read(value: object) -> Read:
    html = value._repr_html_()
    found = Read(html)
    assert found.open == []
    assert set(found.names) <= ALLOWED
    assert {name for _, attributes in found.tags for name in attributes} <= {"class", "style"}
    assert len(html) < 20_000
    return found


def test_an_audit_has_its_conclusion_groups_and_gaps():
    audit = audit_of(frame_of(["M", "F"]), reference="M")[1]
    found = read(audit)
    assert answer(audit)[1] in found.text[""]
    row = audit.groups.loc["F"]
    assert f"{100 * row['tpr']:.1f} [{100 * row['tpr_low']:.1f}, {100 * row['tpr_high']:.1f}]" in found.text[""]
    assert f"{100 * audit['eod'].value:+.1f}" in found.text[""]


def test_hostile_names_stay_text_and_many_groups_stay_short():
    audit = audit_of(frame_of([*HOSTILE, *(f"g{k}" for k in range(60))], n=12))[1]
    assert read(audit).names.count("tr") < 30
    assert "alert" not in read(joined(HOSTILE[2], **{HOSTILE[1]: audit, HOSTILE[0]: audit})).names


def test_several_labels_have_a_row_each():
    one, other = (audit_of(frame_of(["M", "F"], n=n), reference="M")[1] for n in (60, 80))
    found = read(joined("two labels", Effusion=one, Mass=other))
    assert found.names.count("tr") == 3
    assert "Effusion" in found.text[""]
    assert "160" in found.text[""]


@pytest.mark.parametrize("options", [{"rows": 200}, {"rows": 200, "hostile": True}])
def test_a_comparison_has_its_outcome_and_every_method(options):
    case = small_case(**options)
    found = read(case)
    assert outcome_words(case.judgement).split(":")[0] in found.text[""]
    assert all(name in found.text[""] for name in ("original", *(row.name for row in case.found.methods[1:])))
    assert found.text[""].count("(chosen)") == 2  # among the methods, and among the options


def test_a_candidate_without_held_out_rows_says_so():
    candidate = small_case(rows=200).candidates[0].candidate
    found = read(candidate)
    assert "In-sample" in found.text[""]
    row = candidate.trace.iloc[candidate.chosen]
    assert f"{100 * row['gap']:+.1f}" in found.text[""]
