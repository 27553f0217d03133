"""Checks before a comparison: whether two sets of scores cover the same patients, and whether two audits are compatible."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from equipoise.data import ObjectArray, Scores
from equipoise.errors import BadInput
from equipoise.measures import AuditSums

STATE_PAIRING = "State which with --set compare.paired=true or false (paired=True or False), or name a column of patient ids, --patient."


def same_rows(before: Scores, after: Scores) -> None:
    """Raises an error if two sets of scores are not of the same rows in the same order."""
    if not np.array_equal(before.ids, after.ids) or not np.array_equal(before.y, after.y):
        raise BadInput(
            f"a comparison needs the same rows before and after; {before.name!r} and {after.name!r} differ in ids, labels or order. "
            "Score both networks on the same cohort."
        )


def same_patients(first: Scores, second: Scores, first_name: str, second_name: str, paired: bool | None) -> bool:
    """Whether two sets of scores are of the same rows (True) or of different patients (False).

    Rows without ids are numbered; they count as the same if labels and groups agree row by row. Raises an error if the ids contradict
    `paired`, if only some patients are in both sets, or if nothing shows which of the two it is.
    """
    if paired is not None:
        if not paired:
            _check_different(first, second, first_name, second_name)
        return paired
    if len(first) == len(second) and set(first.ids) == set(second.ids):
        order = _order(first, second)
        if np.array_equal(first.y, second.y[order]) and _same_groups(first, second, order):
            return True
    if _keys(first) is None or _keys(second) is None:
        raise BadInput(
            f"{first_name} and {second_name} may be of the same patients or of different ones: they have no ids, and their rows differ. "
            f"{STATE_PAIRING}"
        )
    _check_different(first, second, first_name, second_name)
    return False


def aligned(first: Scores, second: Scores, first_name: str, second_name: str) -> Scores:
    """The second scores in the row order of the first; raises an error if ids, labels or groups differ."""
    first_ids, second_ids = set(first.ids), set(second.ids)
    if first_ids != second_ids or len(first) != len(second):
        raise BadInput(
            f"the same rows are needed in both: {first_name} has {len(first_ids - second_ids):,} that {second_name} lacks, and "
            f"{second_name} has {len(second_ids - first_ids):,} that {first_name} lacks. Keep the rows that both models scored, with the "
            "same ids (data.id)."
        )
    order = _order(first, second)
    where = f"in {second_name} than in {first_name}"
    mislabelled = int((first.y != second.y[order]).sum())
    if mislabelled:
        raise BadInput(f"{mislabelled:,} of {len(first):,} rows have another label {where}. Use the same labels for both.")
    if not _same_groups(first, second, order):
        raise BadInput(f"some rows are in another group {where}. Use the same group columns, bins and reference for both.")
    return second.take(order)


def _check_different(first: Scores, second: Scores, first_name: str, second_name: str) -> None:
    keys = _keys(first), _keys(second)
    shared = len(set(keys[0]) & set(keys[1])) if keys[0] is not None and keys[1] is not None else 0
    if shared:
        unit = "patients" if first.patients is not None else "rows"
        raise BadInput(
            f"{shared:,} {unit} are in both {first_name} and {second_name}, so they are not different {unit}. Leave them out of one, or "
            "compare the models on the rows that both have."
        )


def _keys(scores: Scores) -> ObjectArray | None:
    """The ids of the patients, or of the rows; None if rows are only numbered."""
    if scores.patients is not None:
        return scores.patients
    numbered = all(isinstance(key, (int, np.integer)) for key in scores.ids) and np.array_equal(scores.ids, np.arange(len(scores)))
    return None if numbered else scores.ids


def _order(first: Scores, second: Scores) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The position in `second` of each row of `first`."""
    position = {key: k for k, key in enumerate(second.ids)}
    return np.array([position[key] for key in first.ids], dtype=np.int64)


def _same_groups(first: Scores, second: Scores, order: np.ndarray[tuple[int], np.dtype[np.int64]]) -> bool:
    definitions = [[(a.name, a.levels) for a in scores.attributes] for scores in (first, second)]
    return definitions[0] == definitions[1] and all(
        np.array_equal(a.codes, b.codes[order]) for a, b in zip(first.attributes, second.attributes, strict=True)
    )


def with_common_groups(subjects: Mapping[str, Mapping[str, AuditSums]]) -> dict[str, dict[str, AuditSums]]:
    """The audits with the groups that all of them have."""

    def restricted(audit: AuditSums, label: str) -> AuditSums:
        audits = [by_label[label] for by_label in subjects.values() if label in by_label]
        groups, sums = {}, {}
        for attribute, levels in audit.groups.items():
            shared = [group for group in levels if all(group in one.groups.get(attribute, ()) for one in audits)]
            groups[attribute] = tuple(shared)
            sums[attribute] = audit.sums[attribute].taken([levels.index(group) for group in shared])
        return replace(audit, groups=groups, sums=sums)

    return {name: {label: restricted(audit, label) for label, audit in by_label.items()} for name, by_label in subjects.items()}


def incompatibilities(
    first_name: str, first_audits: Mapping[str, AuditSums], second_name: str, second_audits: Mapping[str, AuditSums]
) -> list[str]:
    """The reasons why two audits, each by label, cannot be compared."""
    names = f"{first_name} and {second_name}"
    if set(first_audits) != set(second_audits):
        labels = f"{', '.join(first_audits)} and {', '.join(second_audits)}"
        return [f"{names} are of different labels: {labels}. Audit the same labels."]
    problems = []
    for label, first in first_audits.items():
        second, where = second_audits[label], f"{names}{f', {label}' if len(first_audits) > 1 else ''}"
        if first.digest is not None and first.digest == second.digest:
            problems.append(
                f"{where}: these are the same {first.rows:,} rows, so they are not two samples of patients. Compare the models by row: "
                "equipoise compare FILE --score OLD --score NEW, or eq.compare({...}) with their scores."
            )
        checks = [
            ("measures", set(first.measures), set(second.measures), "Audit both with the same --measure."),
            ("attributes", set(first.groups), set(second.groups), "Audit both with the same --group."),
            ("confidence levels", first.level, second.level, "Audit both with the same audit.level."),
            ("weighting", first.weighted, second.weighted, "Audit both with or without data.weight."),
        ]
        for what, first_value, second_value, remedy in checks:
            if first_value != second_value:
                problems.append(f"{where}: different {what}: {_listed(first_value)} and {_listed(second_value)}. {remedy}")
        for attribute in first.groups.keys() & second.groups.keys():
            references = first.groups[attribute][:1], second.groups[attribute][:1]
            if references[0] != references[1]:
                shown = " and ".join(", ".join(reference) or "none" for reference in references)
                problems.append(f"{where}: different references of {attribute}: {shown}. Audit both with the same --reference.")
            unmatched = set(first.groups[attribute]) ^ set(second.groups[attribute])
            if unmatched:
                problems.append(
                    f"{where}: different groups of {attribute}; not in both: {', '.join(sorted(unmatched))}. Write groups in the same way, "
                    "or leave out those that are not in both with --set compare.common_groups=true (common_groups=True)."
                )
    return problems


def _listed(value: object) -> str:
    return ", ".join(sorted(map(str, value))) if isinstance(value, set) else str(value)
