"""What can be compared: whether two sets of scores are of the same patients, by their ids, and whether two audits are alike."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from equipoise.data import ObjectArray, Scores
from equipoise.errors import BadInput
from equipoise.measures import AuditSums

SAY = "State which with --paired or --unpaired (paired=True, paired=False), or name a column of patient ids with --patient."


def same_rows(before: Scores, after: Scores) -> None:
    """Raises an error if two sets of scores are not of the same rows in the same order."""
    if not np.array_equal(before.ids, after.ids) or not np.array_equal(before.y, after.y):
        raise BadInput(
            f"a comparison needs the same rows before and after; {before.name!r} and {after.name!r} differ in ids, labels or order. "
            "Score both networks on the same cohort."
        )


def same_patients(first: Scores, other: Scores, one: str, two: str, paired: bool | None) -> bool:
    """Whether two sets of scores are of the same rows, rather than of different patients.

    Rows without ids of their own are numbered; they count as the same where labels and groups agree row by row. Raises an error where that
    contradicts `paired`, where some patients are in both sets, and where nothing shows which of it is the case.
    """
    if paired is not None:
        if not paired:
            _check_different(first, other, one, two)
        return paired
    if len(first) == len(other) and set(first.ids) == set(other.ids):
        order = _order(first, other)
        if np.array_equal(first.y, other.y[order]) and _same_groups(first, other, order):
            return True
    keys = _keys(first), _keys(other)
    if keys[0] is None or keys[1] is None:
        raise BadInput(f"{one} and {two} may be of the same patients or of different ones: they have no ids, and other rows. {SAY}")
    _check_different(first, other, one, two)
    return False


def aligned(first: Scores, other: Scores, one: str, two: str) -> Scores:
    """The other scores in the order of the first; raises an error where ids, labels or groups differ."""
    mine, theirs = set(first.ids), set(other.ids)
    if mine != theirs or len(first) != len(other):
        raise BadInput(
            f"the same rows are needed in both: {one} has {len(mine - theirs):,} that {two} lacks, and {two} has {len(theirs - mine):,} "
            f"that {one} lacks. Keep the rows that both models scored, with the same ids (--id)."
        )
    order = _order(first, other)
    wrong = int((first.y != other.y[order]).sum())
    if wrong:
        raise BadInput(f"{wrong:,} of {len(first):,} rows have another label in {two} than in {one}. Use the same labels for both.")
    if not _same_groups(first, other, order):
        raise BadInput(f"some rows are in another group in {two} than in {one}. Use the same group columns, bins and reference for both.")
    weight = None if other.weight is None else other.weight[order]
    patients = None if other.patients is None else other.patients[order]
    taken = tuple(a.take(order) for a in other.attributes)
    return replace(other, y=other.y[order], score=other.score[order], attributes=taken, patients=patients, ids=first.ids, weight=weight)


def _check_different(first: Scores, other: Scores, one: str, two: str) -> None:
    keys = _keys(first), _keys(other)
    shared = len(set(keys[0]) & set(keys[1])) if keys[0] is not None and keys[1] is not None else 0
    if shared:
        what = "patients" if first.patients is not None else "rows"
        raise BadInput(
            f"{shared:,} {what} are in both {one} and {two}, so they are not different {what}. Leave them out of one, or compare the "
            "models on the rows that both have."
        )


def _keys(scores: Scores) -> ObjectArray | None:
    """What identifies patients, or rows; None where rows are only numbered."""
    if scores.patients is not None:
        return scores.patients
    numbered = all(isinstance(key, (int, np.integer)) for key in scores.ids) and np.array_equal(scores.ids, np.arange(len(scores)))
    return None if numbered else scores.ids


def _order(first: Scores, other: Scores) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Where each row of the first is in the other."""
    place = {key: k for k, key in enumerate(other.ids)}
    return np.array([place[key] for key in first.ids], dtype=np.int64)


def _same_groups(first: Scores, other: Scores, order: np.ndarray[tuple[int], np.dtype[np.int64]]) -> bool:
    names = [[a.name for a in each.attributes] for each in (first, other)]
    if names[0] != names[1] or [a.levels for a in first.attributes] != [a.levels for a in other.attributes]:
        return False
    return all(np.array_equal(a.codes, b.codes[order]) for a, b in zip(first.attributes, other.attributes, strict=True))


def with_common_groups(subjects: Mapping[str, Mapping[str, AuditSums]]) -> dict[str, dict[str, AuditSums]]:
    """The audits with the groups that all of them have."""

    def kept(one: AuditSums, label: str) -> AuditSums:
        others = [each[label] for each in subjects.values() if label in each]
        groups, sums = {}, {}
        for attribute, levels in one.groups.items():
            shared = [g for g in levels if all(g in each.groups.get(attribute, ()) for each in others)]
            groups[attribute] = tuple(shared)
            sums[attribute] = one.sums[attribute].taken([levels.index(group) for group in shared])
        return replace(one, groups=groups, sums=sums)

    return {name: {label: kept(one, label) for label, one in each.items()} for name, each in subjects.items()}


def unlike(first: str, one: Mapping[str, AuditSums], second: str, other: Mapping[str, AuditSums]) -> list[str]:
    """Why two audits cannot be compared."""
    both = f"{first} and {second}"
    if set(one) != set(other):
        return [f"{both} are of different labels: {', '.join(one)} and {', '.join(other)}. Audit the same labels."]
    problems = []
    for label, mine in one.items():
        theirs, where = other[label], f"{both}{f', {label}' if len(one) > 1 else ''}"
        if mine.digest is not None and mine.digest == theirs.digest:
            problems.append(
                f"{where}: these are the same {mine.rows:,} rows, so they are not two samples of patients. Compare the models by row: "
                "equipoise compare FILE --score OLD --score NEW, or eq.compare({...}) with their scores."
            )
        checks: list[tuple[str, Callable[[AuditSums], object], str]] = [
            ("measures", lambda a: set(a.measures), "Audit both with the same --measure."),
            ("attributes", lambda a: set(a.groups), "Audit both with the same --group."),
            ("confidence levels", lambda a: a.level, "Audit both with the same --level."),
            ("weighting", lambda a: a.weighted, "Audit both with or without --weight."),
        ]
        for what, of, todo in checks:
            if of(mine) != of(theirs):
                problems.append(f"{where}: different {what}: {_said(of(mine))} and {_said(of(theirs))}. {todo}")
        for attribute in mine.groups.keys() & theirs.groups.keys():
            references = mine.groups[attribute][:1], theirs.groups[attribute][:1]
            if references[0] != references[1]:
                said = " and ".join(", ".join(each) or "none" for each in references)
                problems.append(f"{where}: different references of {attribute}: {said}. Audit both with the same --reference.")
            only = set(mine.groups[attribute]) ^ set(theirs.groups[attribute])
            if only:
                problems.append(
                    f"{where}: different groups of {attribute}; not in both: {', '.join(sorted(only))}. Write groups in the same way, or "
                    "leave out those that are not in both with --common-groups (common_groups=True)."
                )
    return problems


def _said(value: object) -> str:
    return ", ".join(sorted(map(str, value))) if isinstance(value, set) else str(value)
