"""An audit in words: the largest difference, and who is worse off, in one sentence for a committee; its rows, inputs and conditions.

A committee reads missed findings first, then false alarms, both per 1,000 patients, or per 1,000 rows if patients have several.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pandas as pd

from equipoise.data import CONFLICTS, GroupConflicts
from equipoise.measures import FEW_PATIENTS, SUMMARIES, Audit, Estimate, LabelAudit
from equipoise.report.text import amount, percent, plural, printable, sentence, short_name
from equipoise.report.wording.names import PERFORMANCE_WORDS, RATE_WORDS, GroupNames, distinct, gap_words, performance_words

if TYPE_CHECKING:
    from equipoise.data import ReadCohort, ReturningPatients
    from equipoise.measures import Baseline, BaselineComparison, Condition, Verdict

MISSED, ALARMS = "missed findings", "false alarms"
COMPARED = {  # the measures that compare missed findings or false alarms, and whether a higher value is worse
    MISSED: {"eod": False, "fnr_gap": True},
    ALARMS: {"fpr_gap": True, "tnr_gap": False},
}
MOST_NAMED = 2  # harms of each kind in the sentence
LITTLE_FLAGGED = (
    0.02  # sensitivity, or specificity, at which (almost) no or (almost) every patient is flagged, so that groups cannot differ much
)
DETECTABLE = "whose own interval would exclude zero in 80% of samples of this size, before adjustment"  # the smallest difference ...
READ_IS_NOT_USED = "What a layer holds is not necessarily used: the gaps describe the decisions, this table describes the layers."
BY_ROW = "no patient column was named, so rows are treated as independent (--patient)"
LIMITS = (  # of every report
    "A small difference in one measure does not mean that the classifier is equally good for every group. Other measures may differ, and "
    "some cannot be equal at the same time if the finding is more frequent in one group than in another.",
    "Labels are taken as the truth. If a group's disease is missed or over-diagnosed in the records, these measures inherit it.",
    "Groups are those of the given columns. Differences within a group, and groups that were not recorded, are not seen.",
    "The patients are those of these data, at this place and time. A new scanner, clinic or population needs a new audit.",
    "Intervals cover the sampling of patients, not errors of labels, recording or selection.",
    "Nothing here shows that a difference was caused by the group, nor that a decision is lawful or clinically right. "
    "That is for clinicians, patients and the committee.",
)
SHRINKAGE = (
    "Each rate is shrunk towards the mean of the groups, the more so the less is known about it. Shrunken differences are better guesses "
    "on average and biased towards no difference, so they stand next to the plain ones and have no p-values."
)


CORRECTED = (
    "Corrected: each row counts as positive with the share of adjudicated positives among rows of its group, label and decision. "
    "That is right if which rows were adjudicated depends on nothing else."
)


def largest_gap_row(audit: LabelAudit) -> dict[str, Any] | None:
    """The largest gap, preferably one that is clear after adjustment, and among these one of a single attribute; None if none is known."""
    shown = distinct(audit.gaps["measure"].unique())
    rows: Any = audit.gaps.to_dict("records")
    pool = [row for row in rows if row["measure"] in shown and not math.isnan(row["value"])]
    pool = [row for row in pool if row["clear"]] or pool
    pool = [row for row in pool if row["attribute"] not in audit.intersections] or pool
    return max(pool, key=lambda row: abs(row["value"]), default=None)


def largest_words(audit: LabelAudit) -> str:
    """Among which gaps `largest_gap_row` is the largest: 'largest clear difference among single attributes'."""
    gap = largest_gap_row(audit)
    if gap is None:
        return "largest difference"
    single = "" if not audit.intersections else " among single attributes"
    among = ", an intersection" if gap["attribute"] in audit.intersections else single
    return f"largest clear difference{among}" if gap["clear"] else f"largest difference{among}, not clear"


def conclusion(audit: LabelAudit, names: Mapping[str, str] | None = None) -> str:
    """The largest difference of an audit in one sentence, and how many of its comparisons are clear after adjustment.

    The interval is the simultaneous one, because the gap was selected for its size.
    """
    gap, called = largest_gap_row(audit), GroupNames(names or {})
    if gap is None:
        return "No difference could be estimated: insufficient data."
    if not gap["clear"]:
        return (
            f"No difference between groups is clear after adjustment for {plural(audit.comparisons, 'comparison')}, "
            "which does not show that there is none."
        )
    low, high = sorted(100 * abs(gap[f"simultaneous_{end}"]) for end in ("low", "high"))
    return (
        f"{sentence(gap_words(str(gap['measure'])))} is {100 * abs(gap['value']):.1f} percentage points "
        f"{'lower' if gap['value'] < 0 else 'higher'} in {called(gap['group'])} than in {called(gap['reference'])} "
        f"(simultaneous {percent(audit.settings.level)} interval {low:.1f} to {high:.1f}); "
        f"{audit.findings} of {plural(audit.comparisons, 'comparison')} {'is' if audit.findings == 1 else 'are'} clear after adjustment."
    )


def worse_by(audit: LabelAudit, kind: str) -> dict[tuple[str, str], Estimate]:
    """By attribute and group, how many more are missed (or falsely flagged) than in the reference; negative if fewer."""
    differences: dict[tuple[str, str], Estimate] = {}
    for row in audit.gaps.to_dict("records"):
        higher_is_worse = COMPARED[kind].get(str(row["measure"]))
        key = str(row["attribute"]), str(row["group"])
        if higher_is_worse is None or key in differences:
            continue
        gap = Estimate.of_gap(dict(row))
        if not higher_is_worse:
            low, high = -gap.simultaneous_high, -gap.simultaneous_low
            gap = replace(gap, value=-gap.value, low=-gap.high, high=-gap.low, simultaneous_low=low, simultaneous_high=high)
        differences[key] = gap
    return differences


def harms(audit: LabelAudit) -> list[tuple[str, str, Estimate]]:
    """Every group that is clearly worse off: the kind of errors, the attribute, and how many more there are in `group` than in `reference`,
    with the simultaneous interval. Single attributes come before intersections, missed findings first, the largest first.
    """
    clear_harms = []
    for kind in COMPARED:
        for (attribute, _), gap in worse_by(audit, kind).items():
            if gap.clear:
                worse, better = (gap.group, gap.reference) if gap.value > 0 else (gap.reference, gap.group)
                low, high = sorted(abs(end) for end in (gap.simultaneous_low, gap.simultaneous_high))
                clear_harms.append((kind, attribute, replace(gap, value=abs(gap.value), low=low, high=high, group=worse, reference=better)))
    return sorted(clear_harms, key=lambda harm: (harm[1] in audit.intersections, harm[0] == ALARMS, -harm[2].value))


def counted_unit(rows: int, patients: int | None) -> str:
    """What is counted: patients if each has one row, otherwise rows."""
    return "patients" if patients == rows else "rows"


def few_words(rows: int, patients: int | None, weighted: bool) -> str:
    """The meaning of the mark of few patients; their effective number counts, which is smaller if some have more rows or larger weights."""
    if counted_unit(rows, patients) == "patients" or patients is None:
        unit, unequal = ("rows" if patients is None else "patients"), ("weights" if weighted else "")
    else:
        unit, unequal = "patients", "rows and weights" if weighted else "rows"
    if not unequal:
        return f"fewer than {FEW_PATIENTS} {unit}"
    return f"effective number of {unit} below {FEW_PATIENTS} (unequal {unequal})"


def answer(audit: LabelAudit, names: Mapping[str, str] | None = None, *, brief: bool = False) -> tuple[str, str]:
    """The style and the first sentence on an audit: who is worse off; otherwise another difference, none, or insufficient data.

    A `brief` sentence, for one of several labels, leaves out the number of comparisons.
    """
    every_harm, called, by_row = harms(audit), GroupNames(names or {}), counted_unit(audit.rows, audit.patients) == "rows"
    candidates = [harm for harm in every_harm if harm[1] not in audit.intersections] or every_harm
    named = []
    for kind, attribute, harm in (harm for kind in COMPARED for harm in [harm for harm in candidates if harm[0] == kind][:MOST_NAMED]):
        # 'of 1,000 women who have the finding, 121 more (60 to 182) are missed than of 1,000 men'; without words for groups, 'of 1,000
        # patients who have the finding and whose sex is F, 121 more (60 to 182) are missed than of 1,000 whose sex is M'
        (who, happens), unit = ("who have", "missed") if kind == MISSED else ("who do not have", "falsely flagged"), "patients"
        if by_row:
            who, unit = "with" if kind == MISSED else "without", "rows"
        sides = []
        for group in (harm.group, harm.reference):
            words, whose = (
                f"{unit} of {called(group)}" if by_row else called(group),
                f"{'where' if by_row else 'whose'} {short_name(attribute)}",
            )
            sides.append((words, "") if group in called else ("", f"{whose} is {called(group)}"))
        (worse, where), (better, elsewhere) = sides
        size, *ends = (amount(number, "thousand0") for number in (harm.value, harm.low, harm.high))
        where = f"{'' if by_row else ' and'} {where}" if where else ""
        of = f"of 1,000 {worse or unit} {who} the finding{where}"
        named.append(f"{of}, {size} more ({' to '.join(ends)}) are {happens} than of 1,000 {better or elsewhere}")
    if named:
        more = len(every_harm) - len(named)
        rest = f"; and {more} more such difference{'s' if more > 1 else ''}" if more else ""
        return "harm", f"Worse off: {'; '.join(named)}{rest}."
    largest = largest_gap_row(audit)
    if largest is None and not len(audit.gaps):
        return "unclear", "No difference from the reference is tested: other measures were asked for."
    if largest is None:
        return "unclear", "Insufficient data: no difference between groups could be estimated from these patients."
    if largest["clear"]:
        text = conclusion(audit, names)
        lowered = text if text[:2].isupper() else text[:1].lower() + text[1:]
        return "unclear", f"A difference, not in missed findings or false alarms: {lowered}"
    if alike := _decided_alike(audit):
        return "unclear", f"Nothing to compare: {alike[1]}."
    detectable = _detectable_words(audit, called)
    if brief:
        return "unchanged", f"No clear difference{f'; {detectable}' if detectable else ''}."
    comparisons, but = plural(audit.comparisons, "comparison"), "which does not show that there is none"
    but = f"{but}; {detectable}" if detectable else but
    return "unchanged", f"No clear difference: none of {comparisons} between groups is clear after adjustment, {but}."


def controlled_words(audit: LabelAudit) -> str:
    """What the marks of an audit promise, and in which order its error is spent."""
    tested = audit.gaps[audit.gaps["p_adjusted"].notna()]
    measures = distinct(tested["measure"].unique())
    named = ", ".join(gap_words(measure) for measure in measures) or "no measure"
    later = "; intersections follow, with the error that these leave" if tested["attribute"].isin(audit.intersections).any() else ""
    others = "" if set(distinct(audit.gaps["measure"].unique())) <= set(measures) else "; other measures are not tested"
    error = percent(1 - audit.settings.level)
    return f"The chance of any false mark is at most {error}: tested first are differences in {named}{later}{others}"


def overview_words(audit: Audit) -> str:
    """What the marks in an overview of several labels promise."""
    error = percent(1 - next(iter(audit.labels.values())).settings.level)
    return f"Of the {audit.kind} with a mark in this overview, at most {error} are expected to have no difference (false discovery rate)"


def overview_answer(audit: Audit) -> tuple[str, str]:
    """The style and the first sentence for several labels: in how many of them a group is worse off, or that this is clear in none."""
    clear_harms = [bool(harms(each)) for each in audit.overview.values()]
    clear = [each.findings > 0 for each in audit.overview.values()]
    of_all, worse = f"of {len(audit.labels)} {audit.kind}", "clearly more missed findings or false alarms than another"
    if any(clear_harms):
        return "harm", f"Worse off: in {sum(clear_harms)} {of_all} a group has {worse}."
    if any(clear):
        differ = f"in {sum(clear)} {of_all} another measure differs clearly between groups"
        return "unclear", f"A difference, not in missed findings or false alarms: {differ}."
    decided_alike = [alike[0] for each in audit.labels.values() if (alike := _decided_alike(each))]
    if len(decided_alike) == len(audit.labels):
        who = " or ".join(f"(almost) {kind}" for kind in dict.fromkeys(decided_alike))
        return "unclear", f"Nothing to compare: {who} is flagged at this threshold, in any {of_all}."
    return "unchanged", f"No clear difference: in none {of_all} does a group have {worse}, which does not show that there is no difference."


def _decided_alike(audit: LabelAudit) -> tuple[str, str] | None:
    """The kind of patient that is (almost) never or (almost) always flagged, in words and in a clause with its rate; None if neither is."""
    groups = audit.groups[audit.groups["attribute"].isin(audit.groups["attribute"][:1])]  # those of one attribute have all patients
    for rate, of, kind in (("tpr", "positives", "no patient with the finding"), ("tnr", "negatives", "every patient without the finding")):
        known = groups[[rate, of]].dropna().astype(float)
        rows = known[of].sum()
        if rows and (value := float((known[rate] * known[of]).sum() / rows)) <= LITTLE_FLAGGED:
            almost = "almost " if value > 0 else ""
            return kind, f"{almost}{kind} is flagged at this threshold ({RATE_WORDS[rate].name} {amount(value)})"
    return None


def unflagged_words(audits: Mapping[str, LabelAudit], kind: str = "labels") -> str:
    """Which labels have (almost) no or (almost) every patient flagged, and what to do; empty if there is none. One label is not named."""
    found = {label: alike for label, audit in audits.items() if (alike := _decided_alike(audit))}
    if not found:
        return ""
    by_argmax = any(audits[label].rule.argmax for label in found)
    advice = "" if by_argmax else " Give the threshold in use (--threshold), or a file on which to choose it (--valid)."
    if len(audits) == 1:
        return f"{sentence(next(iter(found.values()))[1])}, which hides differences between groups.{advice}"
    lines = []
    for who in dict.fromkeys(kind for kind, _ in found.values()):
        labels = [label for label, (kind, _) in found.items() if kind == who]
        which = f"for {len(labels)} of {len(audits)} {kind} (almost) {who} is flagged at this threshold"
        lines.append(f"{which}, which hides differences between groups: {', '.join(map(short_name, labels))}")
    return f"{sentence('; '.join(lines))}.{advice}"


def decisions_words(audits: Mapping[str, LabelAudit]) -> str:
    """The decision rule of several labels: once if it is the same for all, otherwise for each."""
    rules = {label: audit.rule.describe() for label, audit in audits.items()}
    if len(set(rules.values())) == 1:
        return f"Positive if {next(iter(rules.values()))}."
    return f"Positive if: {'; '.join(f'{short_name(label)}, {rule}' for label, rule in rules.items())}."


def _detectable_words(audit: LabelAudit, called: GroupNames) -> str:
    """The minimum detectable difference in missed findings, the largest over the groups."""
    rows = audit.gaps[audit.gaps["measure"].isin(COMPARED[MISSED]) & ~audit.gaps["attribute"].isin(audit.intersections)]
    rows = rows[rows["value"].notna() & ~rows.duplicated(["attribute", "group"])]
    if not len(rows):
        return ""
    if rows["detectable"].isna().all():
        return "with this many patients no difference in missed findings is detectable"
    row: pd.Series[float] = rows.loc[rows["detectable"].idxmax()]
    size = amount(float(row["detectable"]), "size")
    return f"detectable in missed findings, before adjustment: {size} percentage points ({called(row['group'])})"


def sampled_words(audit: LabelAudit) -> list[str]:
    """Which figures of a very large table are from a sample of its rows or from binned scores; empty if all rows were used."""
    lines = []
    if "sampled" in audit.groups:
        sampled = audit.groups[audit.groups["sampled"] < audit.groups["n"]]
        if len(sampled):
            names = ", ".join(dict.fromkeys(short_name(name) for name in sampled.index))
            lines.append(
                "Calibration intercept, slope and error, operating points and decision curves are from random samples of whole patients "
                f"(at least {int(sampled['sampled'].min()):,} rows each) in groups with more: {names}."
            )
    measures_by_note: dict[str, list[str]] = {}
    for name, estimate in audit.estimates.items():
        if estimate.note and not estimate.group and not math.isnan(estimate.value):
            words = PERFORMANCE_WORDS[name] if name in PERFORMANCE_WORDS else RATE_WORDS[name].name
            measures_by_note.setdefault(estimate.note, []).append(words)
    return lines + [f"{sentence(' and '.join(names))} of all patients: {note}." for note, names in measures_by_note.items()]


def left_out_words(audit: LabelAudit) -> str:
    """The rows that are in no number; empty if there are none."""
    if not audit.left_out:
        return ""
    unit = "rows" if audit.patients is None else "patients"
    of = f"{plural(audit.left_out, 'row')} outside of the groups with at least {audit.settings.min_patients} {unit}"
    verb = "is" if audit.left_out == 1 else "are"
    return f"{of} {verb} left out of all numbers: otherwise subtraction would disclose labels, decisions and scores of single patients."


def varying_words(varying: GroupConflicts) -> str:
    """The number of patients with more than one group, and how they are counted."""
    have = "patient has" if varying.patients == 1 else "patients have"
    return f"{varying.attribute}: {varying.patients:,} {have} more than one recorded group; {CONFLICTS[varying.rule]} (data.conflicts)"


def baseline_words(baseline: "Baseline | None", level: float = 0.95) -> list[str]:
    """One sentence for each model, original and repaired, that a simple model clearly outperforms; empty if there is none."""
    if baseline is None:
        return []
    performance, sentences = performance_words(baseline.performance), []
    inputs = "16 x 16 pixels and statistics of each image" if baseline.inputs == "pixels" else "the same inputs"
    if baseline.beats_original:
        sentences.append(
            f"The model may be the limit: a logistic regression on {inputs}, fitted to the {baseline.fitted_on}, has a {performance} of "
            f"{_lead_words(baseline.original, level)} than the original network on the same {baseline.rows:,} held-out rows."
        )
    if baseline.beats_repaired and baseline.repaired is not None:
        gaps = (amount(gap, "points") for gap in (baseline.repaired.gap, baseline.repaired.other_gap))
        sentences.append(
            f"A logistic regression on {inputs} with a constraint on the difference in {gap_words(baseline.measure)} has a {performance} "
            f"of {_lead_words(baseline.repaired, level)} than the repaired classifier, with a difference of {' compared with '.join(gaps)} "
            "points: consider another model."
        )
    return sentences


def _lead_words(versus: "BaselineComparison", level: float) -> str:
    difference = versus.difference
    ends = " to ".join(amount(end, "size") for end in (difference.low, difference.high))
    return f"{amount(versus.value)}, {amount(difference.value, 'size')} points ({percent(level)} interval {ends}) more"


# Rows and inputs


def reading_words(read: "ReadCohort", *, names: bool, varying: bool = True) -> list[str]:
    """Notes about rows left out and, unless an audit reports them itself, about patients in several groups.

    With `names`, which are for the user's terminal only, the first images left out are listed.
    """
    lines = []
    if read.not_frontal:
        lines.append(f"{read.not_frontal:,} rows that are not frontal views were left out")
    if count := len(read.left_out):
        kinds = ", ".join(f"{number:,} {kind}" for kind, number in read.left_out_kinds.items())
        lines.append(f"{count:,} unreadable images were left out: {kinds}")
        if names:
            lines += [f"  {image}" for image in read.left_out[:5]]
            lines += [f"  and {count - 5:,} more (--json lists them)"] if count > 5 else []
    if varying:
        lines += map(varying_words, read.cohort.conflicts)
    return lines


def input_words(checks: Sequence[object], preprocessing: Mapping[str, object] | None, origin: str = "") -> list[str]:
    """The preprocessing of the images with its origin, and the result of each comparison with known scores (`ScoreCheck`)."""
    lines = []
    if preprocessing is not None:
        unchecked = "" if checks else "; the scores were not compared with known ones (model.check_scores)"
        lines.append(f"images: {preprocessing_words(preprocessing)}{f' ({origin})' if origin else ''}{unchecked}")
    return lines + list(map(str, checks))


def preprocessing_words(how: Mapping[str, Any]) -> str:
    """The preprocessing of images for a network, from the plain values in run.json.

    >>> preprocessing_words({"resize": 80, "crop": 64, "interpolation": "bilinear", "channels": 1, "mean": [0.5], "std": [0.25]})
    'shorter side resized to 80 pixels (bilinear), central 64 x 64 pixels cropped, greyscale, (pixel - 0.5) / 0.25'
    """
    if how.get("transform"):
        code = how["transform"]
        checksum = f" (SHA-256 {code['sha256'][:12]}...)" if code["sha256"] else ""
        converted = {1: ", from greyscale", 3: ", from RGB"}.get(how.get("channels") or 0, "")
        return f"prepared by the transform {code['named']}{checksum}{converted}"
    resize, crop, interpolation = how.get("resize"), how.get("crop"), how["interpolation"]
    steps = []
    if how.get("preset") == "torchxrayvision":
        steps.append("preprocessing of torchxrayvision")
    if crop == "square":
        steps.append("largest central square cropped")
    if isinstance(resize, int):
        steps.append(f"shorter side resized to {resize} pixels ({interpolation})")
    elif resize is not None:
        steps.append(f"{'resized' if crop == 'square' else 'stretched'} to {resize[0]} x {resize[1]} pixels ({interpolation})")
    if isinstance(crop, int):
        steps.append(f"central {crop} x {crop} pixels cropped")
    steps.append({1: "greyscale", 3: "RGB"}.get(how["channels"], f"{how['channels']} channels"))
    mean, std = (", ".join(f"{value:g}" for value in how[name]) for name in ("mean", "std"))
    steps.append(f"(pixel - ({mean})) / ({std})" if len(how["mean"]) > 1 else f"(pixel - {mean}) / {std}")
    return ", ".join(steps)


def returning_words(returning: "ReturningPatients") -> str:
    """The number of patients who were in earlier periods, and how they count."""
    if not returning.patients:
        return f"none of {returning.of_patients:,} patients was in an earlier period"
    share = returning.patients / returning.of_patients
    who = f"{returning.patients:,} of {returning.of_patients:,} patients ({share:.1%}) were in an earlier period"
    return f"{who}; in a history, the rows of a patient in all periods count as one cluster"


def condition_words(condition: "Condition", verdict: "Verdict") -> str:
    """The reason for which a condition fails a pipeline, in one sentence; empty if it does not."""
    if verdict.holds:
        reasons = []
        for clause, fact, value in verdict.why:
            against = "divided by" if fact.name in SUMMARIES and SUMMARIES[fact.name].is_ratio else "minus"
            groups = f" of {fact.group} {against} {fact.reference}" if fact.reference else f" of {fact.group}" if fact.group else ""
            where = "".join(f", {place}" for place in fact.where[:2] if place)  # the label, and the compared model
            name = fact.name if clause.field == "value" else f"{fact.name}.{clause.field}"
            state = "holds" if not clause.operator else f"is {value:.4g}"
            reasons.append(printable(f"{f'|{name}|' if clause.absolute else name}{groups}{where} {state}"))
        return f"{' and '.join(reasons)}: fails because of --fail-if {condition.text!r}."
    if verdict.unknown:
        lacking = ", ".join(repr(clause.text) for clause in verdict.unknown)
        return f"{lacking} cannot be checked, because no group has sufficient data: fails because of --fail-if {condition.text!r}."
    return ""
