"""The documents of a bundle: report.html, the model cards and README.txt, and the overview of several labels."""

from collections.abc import Callable, Mapping
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from equipoise.measures import Threshold
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
from equipoise.repair import WEIGHT_FILES, Comparison, Options, Saved, Serving
from equipoise.report.card import cards
from equipoise.report.page import labels_page, report_page
from equipoise.report.wording import method_words, preprocessing_words, repair_answer, repair_set_words

CARDS = "card.md and card.xml"


def pages(case: Comparison, options: Options) -> dict[str, Callable[[], dict[str, str]]]:
    """What is written about a comparison, by name: a function that makes the texts of its files."""
    return {
        CARDS: lambda: cards(case, options.card),
        "report.html": lambda: {"report.html": report_page(case, thumbnails=options.thumbnails, names=options.group_names)},
    }


def readme(
    case: Comparison,
    folder: Path,
    place: Path,
    serving: Serving,
    options: Options,
    onnx: Exported | None,
    failures: Mapping[str, str],
) -> str:
    """The README.txt of a bundle: how its weights are loaded, if it has any, and its decisions made, with lines that can be run."""
    environment = Environment(
        loader=PackageLoader("equipoise.report"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False
    )  # plain text
    rule, came = case.result.candidate.rule, serving.came
    about = {
        "title": case.title,
        "version": case.provenance.versions.get("equipoise", ""),
        "when": case.provenance.when,
        "verdict": f"{repair_answer(case)} {repair_set_words(case)}",
        "rule": rule.describe(),
        "needs_group": rule.needs_group,
        "randomised": rule.randomised,
        "folder": folder,
        "failures": failures,
    }
    if case.result.candidate.rule_only:
        columns = {"score": serving.inputs["score"], "logits": serving.inputs["logits"], "reads": list(getattr(rule, "columns", ()))}
        groups = [attribute.name for attribute in case.result.test.attributes] if rule.needs_group else []
        files = sorted(path.name for path in place.glob("predictor.*"))  # the classifier, where it is not scores alone
        own = {"predictor": case.result.candidate.model is not None, "predictor_file": files[0] if files else None}
        return environment.get_template("README_rule.txt.j2").render(**about, **columns, **own, groups=groups)
    model = case.result.candidate.network
    original = plain_weights(model, came)
    heads = heads_of(model, original)
    return environment.get_template("README.txt.j2").render(
        **about,
        program="repaired.pt2" if program_in(model) else None,
        file=next(name for name in WEIGHT_FILES[1:] if (place / name).exists()),
        heads=HEADS if heads else None,
        reading="" if heads is None or isinstance(heads, Recalibrated) else str(heads.reading),
        recalibrated=isinstance(heads, Recalibrated),
        output_name=serving.output_name,
        under=came.under if came is not None else None,
        prefix=state_prefix(original, model),
        masks=masks_in(state_like(original, model)),
        masked_loading=MASKED_LOADING.rstrip(),
        onnx=onnx,
        onnx_rule=options.onnx_rule and isinstance(rule, Threshold),
        output=serving.output,
        images=bool(serving.inputs.get("images")),
        own=serving.code is None and not (serving.inputs.get("images") or {}).get("transform"),
        prepared=preprocessing_words(how) if (how := serving.inputs.get("images")) else "",
        named=serving.model is not None,
    )


def overview(
    title: str, cases: Mapping[str, Comparison], saved: Mapping[str, Saved], places: Mapping[str, Path], options: Options = Options()
) -> dict[str, str]:
    """The report.html and README.txt above the folders of several labels."""
    first = next(iter(cases.values()))
    method, one = method_words(first.result), "class" if first.kind == "classes" else "label"
    alone = first.result.candidate.rule_only
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
        *(rules if alone else network),
        "",
        *(f"  {place.name}: {label}; equipoise apply {place} new.csv{'' if alone else ' --trust'}" for label, place in places.items()),
        "",
        f"report.html links to the report of each {one}; audit.json holds the audits of all.",
        "",
    ]
    return {"report.html": labels_page(title, cases, saved, places, options.group_names), "README.txt": "\n".join(lines)}
