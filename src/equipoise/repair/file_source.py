"""The classifier of a case, loaded: a network or estimator that is run on the rows; none for columns of scores.

Torch is imported only if there is a network.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from equipoise.data import Cohort, Columns, ImageFolder, Rows, Scores
from equipoise.presenting import presenter
from equipoise.repair.case import CaseSpec

if TYPE_CHECKING:
    from equipoise.models import Code
    from equipoise.repair.score_checks import ScoreCheck


def load_classifier(
    case: CaseSpec, *, code: Code | None = None, running: Callable[[Code | None], None] | None = None
) -> tuple[Any, Columns, ImageFolder, str]:
    """The network or estimator of a case, the columns and images that it reads, and the origin of the images' preprocessing in words.

    There is no model if the table holds scores. `running` is called before the code in an exported program is run.
    """
    model, images = case.model, case.images
    if model.load is None:
        return None, case.data, images, ""
    from equipoise.models import load_estimator, load_network, load_transform, with_saved_preprocessing

    if model.is_estimator:
        return *load_estimator(model.load, case.data, trusted=model.trust_types, trust_pickle=model.trust_pickle), images, ""
    if isinstance(images.transform, str):
        images = images.changed(transform=load_transform(images.transform))
    images, origin = with_saved_preprocessing(model.load, images)
    return (
        load_network(model.load, model.weights, images, output_name=case.output_name, code=code, running=running),
        case.data,
        images,
        origin,
    )


def check_known(case: CaseSpec, images: ImageFolder, model: Any, cohort: Cohort, scores: Mapping[str, Scores]) -> list[ScoreCheck]:
    """The scores of each label compared with the known ones, if the case has any; see `check_known_scores`."""
    if case.model.check_scores is None:
        return []
    from equipoise.repair.score_checks import check_known_scores

    options: dict[str, Any] = {"columns": case.data, "images": images, "outputs": case.outputs, "tolerance": case.model.tolerance}
    return check_known_scores(case.model.check_scores, case.model.known, model, cohort, scores, **options)


def check_group_names(group_names: Mapping[str, str] | None, rows: Rows) -> None:
    """Raises an error for words for a group that the rows do not have."""
    presenter("group_words")(group_names, {attribute.name: attribute.levels for attribute in rows.attributes})
