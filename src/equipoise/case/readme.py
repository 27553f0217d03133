"""The README.txt of a bundle: how to load its weights and how to make decisions, with code that can be run."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.case.folder import WEIGHT_FILES
from equipoise.case.serving import Serving
from equipoise.comparison import Comparison
from equipoise.report import ReportSpec, groups_called, preprocessing_words, render, repair_answer, repair_set_words

if TYPE_CHECKING:
    from equipoise.models import Exported


def readme(
    case: Comparison,
    folder: Path,
    place: Path,
    serving: Serving,
    options: ReportSpec,
    onnx: "Exported | None",
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
    from equipoise.models import (
        HEADS,
        MASKED_LOADING,
        Recalibrated,
        heads_of,
        masks_in,
        plain_weights,
        program_in,
        state_like,
        state_prefix,
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
