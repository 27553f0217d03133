"""The section [report] of a case: what a report is made from besides its result.

Importing this module imports neither pandas nor templates.
"""

from pathlib import Path

from equipoise.specification import Specification, setting


class ReportSpec(Specification):
    """The section [report]: what is written next to the result, and how groups are called in it."""

    title: str | None = setting("title of the report", None, shown="label and model")
    words: dict[str, str] = setting('words for groups, as in { F = "women", M = "men" }', default_factory=dict)
    figures: Path | None = setting("folder for the figures of an audit (SVG)", None)
    thumbnails: bool = setting("show images of the patients whose score changed most", False)
    card: Path | None = setting("TOML file with facts for the model card", None)
    onnx: bool = setting("also write model.onnx", True)
    onnx_rule: bool = setting("include score and decision in model.onnx, if the rule is a threshold", False)
