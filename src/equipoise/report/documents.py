"""The documents of a bundle: report.html, the model cards and README.txt, and the overview of several labels."""

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from urllib.parse import quote

from equipoise.models import (
    HEADS,
    MASKED_LOADING,
    Exported,
    Recalibrated,
    heads_of,
    masks_in,
    plain_weights,
    program_in,
    state_like,
    state_prefix,
)
from equipoise.repair import WEIGHT_FILES, Comparison, ReportSpec, Saved, Serving
from equipoise.report.model_card import cards
from equipoise.report.pages import page_of, render
from equipoise.report.repairs import overview_document, repair_document
from equipoise.report.text import plain
from equipoise.report.wording.inputs import preprocessing_words
from equipoise.report.wording.repairs import (
    groups_called,
    method_words,
    repair_answer,
    repair_set_words,
)

CARDS = "card.md and card.xml"


def documents_of(case: Comparison, options: ReportSpec) -> dict[str, Callable[[], dict[str, str]]]:
    """The documents of a comparison: for each, a function that returns the texts of its files by name."""
    return {
        CARDS: lambda: cards(case, options.card),
        "report.html": lambda: {"report.html": page_of(repair_document(case, options.words, thumbnails=options.thumbnails))},
    }


def readme(
    case: Comparison,
    folder: Path,
    place: Path,
    serving: Serving,
    options: ReportSpec,
    onnx: Exported | None,
    failures: Mapping[str, str],
) -> str:
    """The README.txt of a bundle: how to load its weights, if it has any, and how to make decisions, with code that can be run."""
    rule, original = case.result.candidate.rule, serving.checkpoint
    inputs, saved = serving.inputs, serving.model
    drawn_by = inputs.id or inputs.image_column or inputs.patient
    about = {
        "title": case.title,
        "version": case.provenance.versions.get("equipoise", ""),
        "when": case.provenance.when,
        "verdict": f"{repair_answer(case, groups_called(case, options.words))} {repair_set_words(case)}",
        "rule": rule.describe(),
        "needs_group": rule.needs_group,
        "randomised": rule.randomised,
        "drawn_by": drawn_by,
        "drawn_by_patient": drawn_by is not None and drawn_by == inputs.patient,
        "folder": folder,
        "failures": failures,
    }
    if saved is None:
        files = sorted(path.name for path in place.glob("predictor.*"))  # the classifier, unless only scores were given
        return render(
            "README_rule.txt.j2",
            about
            | {
                "score": inputs.score,
                "logits": inputs.logits,
                "reads": list(getattr(rule, "columns", ())),
                "groups": [attribute.name for attribute in case.result.test.attributes] if rule.needs_group else [],
                "predictor": case.result.candidate.model is not None,
                "predictor_file": files[0] if files else None,
            },
        )
    model = case.result.candidate.network
    weights = plain_weights(model, original)
    heads = heads_of(model, weights)
    return render(
        "README.txt.j2",
        about
        | {
            "program": "repaired.pt2" if program_in(model) else None,
            "file": next(name for name in WEIGHT_FILES[1:] if (place / name).exists()),
            "heads": HEADS if heads else None,
            "reading": "" if heads is None or isinstance(heads, Recalibrated) else str(heads.reading),
            "recalibrated": isinstance(heads, Recalibrated),
            "output_name": saved.output_name,
            "under": original.under if original is not None else None,
            "prefix": state_prefix(weights, model),
            "masks": masks_in(state_like(weights, model)),
            "masked_loading": MASKED_LOADING.rstrip(),
            "onnx": onnx,
            "onnx_rule": options.onnx_rule and rule.shared is not None,
            "output": saved.output,
            "images": inputs.images is not None,
            "own": saved.code is None and (inputs.images is None or inputs.images.transform is None),
            "prepared": preprocessing_words(asdict(inputs.images)) if inputs.images is not None else "",
            "named": saved.load is not None,
        },
    )


def overview(
    title: str, cases: Mapping[str, Comparison], saved: Mapping[str, Saved], places: Mapping[str, Path], options: ReportSpec = ReportSpec()
) -> dict[str, str]:
    """The report.html and README.txt above the folders of several labels."""
    first = next(iter(cases.values()))
    method, one = method_words(first.result), first.kind.one
    rule_only = first.result.candidate.rule_only
    rules = [
        f"The scores of {len(cases)} labels, each with a decision rule of its own. Each folder here is complete: the rule, the audits, the",
        "report and the model card.",
    ]
    network = [
        f"One network, {len(cases)} {first.kind}, repaired by {method}. Each folder here is complete: the network's weights, the rule for",
        f"its {one}, the audits, the report and the model card. The weights are the same in all of them; heads around the",
        f"network (heads.safetensors), if any, are those of the {one}.",
    ]
    lines = [
        title,
        "",
        *(rules if rule_only else network),
        "",
        *(f"  {place.name}: {label}; equipoise apply {place} new.csv{'' if rule_only else ' --trust'}" for label, place in places.items()),
        "",
        f"report.html links to the report of each {one}; audit.json holds the audits of all.",
        "",
    ]
    links = {label: f"{quote(place.name)}/report.html" for label, place in places.items() if "report.html" in saved[label].files}
    page = page_of(overview_document(title, cases, links, options.words))
    return {"report.html": page, "README.txt": "\n".join(map(plain, lines))}
