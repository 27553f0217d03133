"""Model cards: valid by CHAI's schema, numbers of the audit, nothing that a name can break, and 'not provided' for missing facts."""

import io
import os
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import equipoise as eq
from equipoise.comparison import Comparison
from equipoise.data import Attribute, Scores
from equipoise.measures import AuditSpec
from equipoise.methods import Note
from equipoise.report import why_words
from equipoise.report.model_card import cards, pipeline_tag
from equipoise.report.text import amount, clean, fenced, name, prose, span
from support.cards import DOCS, TOML, metadata_of, results_of, text_at, written_cards
from support.cases import HOSTILE, small_case
from support.facts import says
from support.goals import paper_goal

LEVELLING = "Levelling"  # the word for a difference that closed because a group got worse
UNKNOWN = amount(float("nan"))
EVIL = "a\x00b\x1b[31m|`c` <img src=x onerror=alert(1)> ]]> &lt; *d* \ud800\ufffe\u2028--- \u202e: #\n---\nlicense: evil"
SIGNATURE = """<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" targetNamespace="http://www.w3.org/2000/09/xmldsig#">
<xs:element name="Signature" type="xs:anyType"/></xs:schema>"""


def _schema():
    """CHAI's schema, with a stub for the signature schema that it takes from the network."""
    etree = pytest.importorskip("lxml.etree", reason="validating card.xml needs lxml")
    roots = [Path(os.environ["EQUIPOISE_DATA"]).parent] if os.environ.get("EQUIPOISE_DATA") else []
    roots += [parent / "shared" for parent in Path(__file__).resolve().parents]
    path = next((root / "chai" / "schema-v0.2.xsd" for root in roots if (root / "chai" / "schema-v0.2.xsd").is_file()), None)
    if path is None:
        pytest.skip("CHAI's schema is not here: put it beside the data root, chai/schema-v0.2.xsd")

    class Stub(etree.Resolver):
        def resolve(self, url, _id, context):
            return self.resolve_string(SIGNATURE, context) if "xmldsig" in url else None

    parser = etree.XMLParser(no_network=True)
    parser.resolvers.add(Stub())
    return etree, etree.XMLSchema(etree.parse(str(path), parser))


def _renamed(case: Comparison, text: str) -> Comparison:
    """The case with one text for every name in it: title, label, attribute, groups, file, command, limits."""

    held = text.replace("\ud800", "")  # which pandas cannot hold in a frame

    def scores(old: Scores) -> Scores:
        attributes = tuple(Attribute(held, tuple(f"{held}{k}" for k in range(len(a.levels))), a.codes, False) for a in old.attributes)
        return replace(old, attributes=attributes, name=text)

    def repair(old):
        candidate = replace(old.candidate, why=(Note(text, text),), notes=(Note(text, text),), settings={"key": text})
        return replace(old, candidate=candidate, valid=scores(old.valid), test=scores(old.test))

    provenance = replace(
        case.provenance, command=text, model=text, limits=[text], hashes={text: text, f"{text}2": text}, versions={text: text}
    )
    return replace(case, title=text, label=text, classifiers=(repair(case.original), repair(case.result)), chosen=0, provenance=provenance)


ONE = {"methods": ("bias-gda",)}  # the others are audited too, and are in the first case
CASES = {
    "two groups": {},
    "three groups": {"groups": ("M", "F", "X"), **ONE},
    "two attributes": {"second": True, **ONE},
    "a rule that needs the group": {"methods": ("reject-option",)},
    "a randomised rule": {"methods": ("equalised-odds",)},
    "hostile names": {"hostile": True, "methods": ("equalised-odds",)},
    "no patient ids": {"patients": False, **ONE},
    "missing groups": {"missing": 0.2, **ONE},
    "a tiny group": {"groups": ("M", "F", "X"), "shares": (0.6, 0.397, 0.003), **ONE},
    "a maximum gap": {"goal": paper_goal("aod", "accuracy", max_gap=0.05), **ONE},
}


@pytest.mark.parametrize(
    ("kind", "toml"), [*((kind, None) for kind in CASES), ("a randomised rule", "own"), ("hostile names", "own"), ("a tiny group", "docs")]
)
def test_the_xml_is_valid(kind, toml, tmp_path):
    etree, schema = _schema()
    example = re.search(r"```toml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)[1]
    written_cards(small_case(**CASES[kind]), tmp_path, {"own": TOML, "docs": example}.get(toml))
    schema.assertValid(etree.parse(str(tmp_path / "card.xml")))


def test_the_schema_refuses_a_card_without_a_field(tmp_path):
    """So that the test above can fail."""
    etree, schema = _schema()
    written_cards(small_case(), tmp_path)
    text = (tmp_path / "card.xml").read_text(encoding="utf-8")
    assert not schema.validate(etree.parse(io.BytesIO(re.sub("<MetricGoal>.*?</MetricGoal>", "", text, count=1).encode())))


def test_numbers_are_those_of_the_audit(tmp_path):
    case = small_case()
    markdown, root = written_cards(case, tmp_path)
    fairness, performance = results_of(root, "FairnessEquity"), results_of(root, "UsefulnessUsabilityEfficacy")
    labels = (("balanced accuracy", "balanced_accuracy"), ("AUROC", "auroc"))
    places = ("KeyMetrics/FairnessEquity/Interpretation", "Warnings/KnownBiasesOrEthicalConsiderations")
    texts = [markdown, *(text_at(root, place) for place in places)]
    for when, repair in (("before", case.original), ("after", case.result)):
        found = eq.audit(repair.test, threshold=repair.candidate.rule.value)
        pairs = [(fairness[f"eod by sex, F minus M, {when}"], found["eod"])]
        pairs += [(performance[f"{label}, {when}"], found[key]) for label, key in labels]
        for written, estimate in pairs:
            assert (written["estimate"], written["lower"], written["upper"]) == (estimate.value, estimate.low, estimate.high)
            assert (written["kind"], written["level"]) == ("estimate_ci", 95)
        for group in ("M", "F"):
            for rate, word in (("tpr", "sensitivity"), ("tnr", "specificity")):
                row, written = found.groups.loc[group], fairness[f"{word}, sex {group}, {when}"]
                assert [written[k] for k in ("estimate", "lower", "upper")] == [row[rate], row[f"{rate}_low"], row[f"{rate}_high"]]
        eod = found["eod"]
        for text in texts:
            assert amount(eod.value, "points") in text
            assert f"{span(eod.low, eod.high, 'points')} {when}" in text


def test_metadata_holds_the_numbers_after_the_repair(tmp_path):
    case = small_case()
    markdown, _ = written_cards(case, tmp_path)
    found = eq.audit(case.result.test, threshold=case.result.candidate.rule.value)
    data = metadata_of(markdown)
    assert (data["license"], data["library_name"], data["pipeline_tag"]) == ("unknown", "pytorch", "tabular-classification")
    [entry] = data["model-index"]
    [result] = entry["results"]
    metrics = {metric["type"]: metric for metric in result["metrics"]}
    for kind, key in (("balanced_accuracy", "balanced_accuracy"), ("roc_auc", "auroc"), ("eod", "eod")):
        assert metrics[kind]["value"] == found[key].value
        assert (metrics[kind]["args"]["low"], metrics[kind]["args"]["high"]) == (found[key].low, found[key].high)
    assert metrics["eod"]["args"]["group"] == "F"
    assert list(metrics) == data["metrics"]


@pytest.mark.parametrize("text", ["Ward 3: triage", EVIL])
def test_the_hub_reads_the_metadata(text, tmp_path):
    """With the library that uploads cards: it refuses a model-index that is not complete."""
    hub = pytest.importorskip("huggingface_hub", reason="reading a card as Hugging Face does: pip install huggingface_hub")
    case = _renamed(small_case(chosen=0), text)
    markdown, _ = written_cards(case, tmp_path, TOML)
    card = hub.ModelCard(markdown)
    assert (card.data.license, card.data.library_name, card.data.pipeline_tag) == ("apache-2.0", "pytorch", "tabular-classification")
    found = {each.metric_type: each for each in card.data.eval_results}
    assert found["eod"].metric_value == case.found.gap_after.value
    assert found["eod"].dataset_split == "test"
    assert hub.ModelCard(str(card)).data.to_dict() == card.data.to_dict()


def test_the_findings_of_the_report_are_those_of_the_card(monkeypatch):
    case = replace(small_case(), settings=AuditSpec(level=0.5))
    last = case.found.after
    monkeypatch.setattr("equipoise.comparison.comparisons.find", lambda *_: pytest.fail("it was audited again"))
    written = results_of(ET.fromstring(cards(case)["card.xml"].encode()), "FairnessEquity")["eod by sex, F minus M, after"]
    assert (written["lower"], written["upper"], written["level"]) == (last["eod"].low, last["eod"].high, 50)


def test_changed_decisions_and_who_got_worse(tmp_path):
    case = small_case(cure=0.0, harm=1.0, goal=paper_goal("eod", "balanced_accuracy", min_performance=0.55))
    markdown, root = written_cards(case, tmp_path)
    y, codes = case.result.test.y, case.result.test.attribute.codes
    before, after = (r.test.score >= r.candidate.rule.value for r in (case.original, case.result))
    sick = (codes == 0) & (y == 1)
    missed, found = int((before & ~after & sick).sum()), int((~before & after & sick).sum())
    well = (codes == 0) & (y == 0)
    alarms, cleared = int((~before & after & well).sum()), int((before & ~after & well).sum())
    assert missed > 10
    assert f"| M | {sick.sum()} | {found} | {missed} | {well.sum()} | {cleared} | {alarms} |" in markdown
    more = round(1000 * (missed - found) / (codes == 0).sum())
    for text in (markdown, text_at(root, "Warnings/KnownBiasesOrEthicalConsiderations")):
        assert f"M, {more} more missed findings" in text
        assert LEVELLING in text


def test_nobody_worse_is_said_too(tmp_path):
    case = small_case()
    same = replace(case.result, candidate=replace(case.original.candidate), test=case.original.test)
    markdown, _ = written_cards(replace(case, classifiers=(case.original, same), chosen=0), tmp_path)
    assert f"| M | {(case.result.test.y[case.result.test.attribute.codes == 0] == 1).sum()} |" in markdown
    assert "**Worse:**" not in markdown
    assert LEVELLING not in markdown


def test_the_card_says_sizes_parts_and_the_goal(tmp_path):
    case = small_case()
    markdown, root = written_cards(case, tmp_path)
    patients = len(set(case.result.test.patients))
    where = f"600 rows of {patients} patients, {case.result.test.y.sum()} of them positive"
    assert where in markdown
    assert where in text_at(root, "KeyMetrics/FairnessEquity/TestingDataDescription")
    process = text_at(root, "KeyMetrics/FairnessEquity/ValidationProcessAndJustification")
    assert "of 4" in process
    assert says(process, "number of patients")
    min_performance = f"{100 * case.result.candidate.goal.min_performance:.1f}%"
    assert says(text_at(root, "KeyMetrics/FairnessEquity/MetricGoal"), "balanced accuracy", min_performance)
    assert "bias-gda" in text_at(root, "TrustIngredients/AISystemFacts/BiasMitigationApproaches")
    assert name(why_words(case.result.candidate.why)) in markdown
    assert [limit for limit in case.provenance.limits if not says(text_at(root, "Warnings/KnownRisksAndLimitations"), limit)] == []


def test_a_missed_goal_is_said(tmp_path):
    case = small_case(goal=paper_goal("eod", "balanced_accuracy", min_performance=0.99), **ONE)
    markdown, _ = written_cards(case, tmp_path)
    assert not case.result.candidate.met_in_sample
    assert says(markdown, why_words(case.result.candidate.why), "limit 99.0%")
    (tmp_path / "max_gap").mkdir()
    markdown, _ = written_cards(small_case(goal=paper_goal("eod", "balanced_accuracy", max_gap=0.0), cure=0.2, **ONE), tmp_path / "max_gap")
    assert says(markdown, "Not all limits of the goal are kept")


def test_patients_in_both_parts_are_counted(tmp_path):
    case = small_case()
    mixed = np.concatenate([case.result.test.patients[:300], case.result.valid.patients[300:]])
    result = replace(case.result, valid=replace(case.result.valid, patients=mixed))
    markdown, _ = written_cards(replace(case, classifiers=(case.original, result)), tmp_path)
    assert says(markdown, "300 patients", "both")
    markdown, _ = written_cards(small_case(patients=False, **ONE), tmp_path)
    assert says(markdown, "patient ids")


@pytest.mark.parametrize("method", ["reject-option", "equalised-odds"])
def test_a_rule_that_needs_the_group_is_said(method, tmp_path):
    _, root = written_cards(small_case(methods=(method,)), tmp_path)
    needs = text_at(root, "UsesAndDirections/HowToUse")
    _, root = written_cards(small_case(), tmp_path)
    plain = text_at(root, "UsesAndDirections/HowToUse")
    assert says(needs, "needs", "group")
    assert says(plain, "does not need")


def test_insufficient_data_is_said_and_never_a_number(tmp_path):
    case = small_case(**CASES["a tiny group"])
    markdown, root = written_cards(case, tmp_path)
    assert (case.result.test.attribute.codes == 2).sum() < 5
    results = results_of(root, "FairnessEquity")
    gap = results["eod by sex, X minus M, after"]
    assert gap["kind"] == "single"
    assert gap["value"].startswith(UNKNOWN)
    [row] = [line for line in markdown.splitlines() if line.startswith("| sensitivity, minus M ") and "| X |" in line]
    assert not re.search(r"\d", row)
    assert not re.search(r"\bnan\b", markdown, re.IGNORECASE)


def test_only_insufficient_data(tmp_path):
    case = small_case(groups=("M", "F"), shares=(0.997, 0.003), **ONE)
    markdown, _ = written_cards(case, tmp_path)
    assert says(markdown, UNKNOWN)
    assert "eod" not in [metric["type"] for metric in metadata_of(markdown)["model-index"][0]["results"][0]["metrics"]]


@pytest.mark.parametrize("text", [EVIL, *HOSTILE])
def test_names_break_neither_file(text, tmp_path):
    case = _renamed(small_case(chosen=0), text)
    markdown, root = written_cards(case, tmp_path)
    data = metadata_of(markdown)
    assert data["license"] == "unknown"
    assert len(data["model-index"][0]["name"]) <= 220
    visible = "".join(root.itertext()) + markdown
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e]", visible)
    assert max(map(len, markdown.splitlines())) < 30_000
    headings = [row for row in markdown.splitlines() if re.match(r"#{1,6} ", row)]
    plain, _ = written_cards(_renamed(small_case(chosen=0), "plain"), tmp_path)
    assert len(headings) == len([row for row in plain.splitlines() if re.match(r"#{1,6} ", row)])
    rows = [[len(re.findall(r"(?<!\\)\|", row)) for row in card.splitlines() if row.startswith("| ")] for card in (markdown, plain)]
    assert rows[0] == rows[1]  # nobody's name adds a column or a line to a table


def test_html_in_names_is_text_when_rendered(tmp_path):
    markdown_it = pytest.importorskip("markdown_it", reason="rendering needs markdown-it-py, which rich brings")
    case = _renamed(small_case(), "<script>alert(1)</script><img src=x> [x](javascript:alert(2)) `a` | *b*")
    markdown, _ = written_cards(case, tmp_path)
    body = markdown.split("\n---\n", 1)[1]
    page = markdown_it.MarkdownIt("commonmark", {"html": True}).enable("table").render(body)
    assert "<script>" not in page
    assert "<img" not in page
    assert "javascript:alert(2)&quot;" not in page
    assert 'href="javascript' not in page
    assert "&lt;script&gt;alert(1)" in page
    assert page.count("<table>") == 9


def test_the_task_follows_the_layers_unless_told():
    assert pipeline_tag(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())) == "image-classification"
    assert pipeline_tag(nn.Linear(2, 1)) == "tabular-classification"


def test_text_is_cleaned_and_escaped():
    assert clean("a\x07\ud800\ufffe\tb") == "a\\x07\\ud800\\ufffe    b"
    assert name("patient_id & _x_ &lt; $a$") == r"patient_id & \_x\_ \&lt; \$a\$"
    assert len(name("M" * 10_000)) <= 60
    assert prose("<b>x</b> <https://a.org> 1 < 2") == "&lt;b>x&lt;/b> <https://a.org> 1 < 2"
    assert fenced("a ```` b").startswith("`````\n")
