"""The facts of a card that only the user knows, read from card.toml."""

import re

import pytest

from equipoise.errors import BadInput
from equipoise.report import read_facts
from equipoise.report.model_card import FACT_SECTIONS, NOT_PROVIDED, cards
from support.cards import DOCS, TOML, metadata_of, results_of, text_at, written_cards
from support.cases import small_case
from support.facts import facts, says


def test_without_a_toml_the_fields_are_marked_not_provided(tmp_path):
    markdown, root = written_cards(small_case(), tmp_path)
    for path in (
        "BasicInfo/ModelDeveloper",
        "BasicInfo/DeveloperContact",
        "ReleaseInfo/ReleaseStage",
        "ReleaseInfo/EHRCompatibility/EHR",
        "UsesAndDirections/IntendedUseAndWorkflow",
        "Warnings/ClinicalRiskLevel",
        "TrustIngredients/AISystemFacts/InputDataSource",
        "TrustIngredients/AISystemFacts/Security",
        "TrustIngredients/TransparencyInformation/FundingSource",
        "KeyMetrics/SafetyReliability/MetricGoal",
        "KeyMetrics/SafetyReliability/Results/MetricResult/Label",
        "Resources/PatientConsentOrDisclosure",
    ):
        assert text_at(root, path) == NOT_PROVIDED, path
    assert text_at(root, "BasicInfo/ModelName") == "Pneumonia, simulated"
    assert f"- **Developed by:** {NOT_PROVIDED}" in markdown
    assert f"## Environmental Impact\n\n{NOT_PROVIDED}\n" in markdown


def test_what_the_user_wrote_is_in_both_cards(tmp_path):
    markdown, root = written_cards(small_case(), tmp_path, TOML)
    data = metadata_of(markdown)
    assert data["license"] == "apache-2.0"
    assert data["tags"][-2:] == ["x-ray", "a: b"]
    assert data["model-index"][0]["name"] == "Ward 3 triage"
    assert re.search(r"^# .*Ward 3 triage$", markdown, re.MULTILINE)
    assert text_at(root, "ReleaseInfo/ReleaseDate") == "2026-03-02"
    assert text_at(root, "UsesAndDirections/IntendedUseAndWorkflow") == "**Sorts** the list &lt;script>alert(1)&lt;/script>"
    assert results_of(root, "SafetyReliability") == {
        "Delay": {"kind": "estimate_ci", "estimate": 2.1, "lower": 1.8, "upper": 2.6, "level": 95, "unit": "seconds"}
    }
    assert "- Delay: 2.1 [1.8, 2.6] seconds" in markdown
    assert text_at(root, "BasicInfo/ModelDeveloper") == NOT_PROVIDED


def test_the_example_in_the_docs_has_every_key_and_leaves_nothing_out(tmp_path):
    example = re.search(r"```toml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)[1]
    path = tmp_path / "card.toml"
    path.write_text(example, encoding="utf-8")
    facts = read_facts(path)
    for section in FACT_SECTIONS:
        for key, value in vars(getattr(facts, section)).items():
            assert value not in (NOT_PROVIDED, ()), f"{section}.{key}"
    markdown, root = written_cards(small_case(), tmp_path, example)
    assert NOT_PROVIDED not in "".join(root.itertext())
    assert markdown.count(NOT_PROVIDED) == 1  # how the original network was trained


def test_every_problem_of_a_toml_is_in_one_message(tmp_path):
    path = tmp_path / "card.toml"
    path.write_text(
        'contact = "x"\n[modle]\n[model]\nversion = 1.2\ndevelopper = "x"\nehr = "Epic"\nintended = "x"\n'
        "[[safety.results]]\nvalue = 1\nlow = 0\n[[safety.results]]\nlabel = 'a'\nvalue = nan\nunti = 's'\n"
        "[[safety.results]]\nlabel = 'b'\nvalue = 'x'\nlow = 1\nhigh = 2\n[[safety.results]]\nlabel = 'c'\nvalue = 1\nlow = 0\n",
        encoding="utf-8",
    )
    with pytest.raises(BadInput) as caught:
        read_facts(path)
    assert says(caught.value, 13, path)
    for named in (
        ("contact",),
        ("modle", "'model'"),
        ("model.version", 1.2),
        ("model.developper", "'developer'"),
        ("model.ehr", "list", "Epic"),
        ("model.intended",),
        ("safety.results[0].label", "missing"),
        ("safety.results[3]", "low", "high"),
        ("safety.results[1].value", "number"),
        ("safety.results[1].unti", "'unit'"),
        ("safety.results[2]", "number", "value"),
    ):
        assert any(says(problem, *named) for problem in caught.value.problems), named


def test_a_toml_that_cannot_be_read(tmp_path):
    with pytest.raises(BadInput, match=facts(tmp_path / "none.toml")):
        read_facts(tmp_path / "none.toml")
    with pytest.raises(BadInput, match=facts(tmp_path)):
        read_facts(tmp_path)
    path = tmp_path / "card.toml"
    path.write_text("[model", encoding="utf-8")
    with pytest.raises(BadInput, match=facts(path, "TOML")):
        read_facts(path)
    path.write_bytes(b"\xef\xbb\xbf[model]\nname = 'with a mark'\n")
    assert read_facts(path).model.name == "with a mark"


def test_a_mistake_is_an_error_before_anything_is_made(tmp_path):
    (tmp_path / "card.toml").write_text("[model]\nnam = 'x'\n", encoding="utf-8")
    with pytest.raises(BadInput, match="'name'"):
        cards(small_case(), tmp_path / "card.toml")
