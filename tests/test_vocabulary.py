"""One concept, one term, in everything that a person reads: code, help, messages, report and documentation.

Each entry of WORDS is a phrase that the project does not use, with what to write instead. A place where the phrase is meant in its ordinary
sense goes into EXCEPTIONS, with the reason; an exception that no longer occurs is an error as well.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
KINDS = {".md", ".py", ".pyi", ".html", ".j2", ".js", ".toml", ".txt"}
COUNTED = (
    "row|gap|threshold|file|folder|score|number|probe|multiplier|weight|value|line|step|network|column|report|page|goal|audit|output|seed|"
    "thread|point|entry|label|patient|unit"
)
UNITS = r"\bs|seconds|epochs|units|patients|rows|images|looks|steps"

WORDS: dict[str, tuple[str, str]] = {
    "distributive article": (
        rf"\b(?:one|two|\d+|a|an) (?:{COUNTED}) (?:a|an) (?!(?:time|lot|few|little|bit|half|third)\b)[a-z]+",
        "one row per image",
    ),
    "per-unit article": (
        rf"(?:{UNITS}) (?:a|an) (?:split|step|epoch|group|row|patient|look|image|side|process)\b",
        "0.3 s per step",
    ),
    "look": (r"\blooks?\b(?! (?:at|for|like|up|into)\b)", "evaluation, step"),
    "told": (r"\b(?:is|are|was|were|be) told\b|\btells? (?:itself|apart|of)\b", "reports, shows, warns; distinguishes"),
    "dealt": (r"\bdeal(?:t|s|ing)?\b(?! with)", "assigned, permuted, resampled"),
    "anew": (r"\banew\b", "again"),
    "mend": (r"\bmend(?:s|ed)?\b", "fix, correct"),
    "kept aside": (r"\bkept aside\b|\bkeeps? aside\b", "held out; held-out rows"),
    "as it came": (r"\bas (?:it|they) came\b", "the original model, at the original threshold"),
    "will do": (r"\bwill (?:not )?do\b(?! \w+ing)", "is valid, is enough"),
    "dearer": (r"\bdearer\b", "slower, more expensive"),
    "nobody": (r"\bnobody\b", "no patient, no row; name who"),
    "beside": (r"\bbeside\b", "next to, compared with, in addition to"),
    "found out": (r"\bfound out\b", "auto-detected"),
    "goes on where": (r"\bgoes on where\b", "resumes"),
    "by heart": (r"\bby heart\b", "overfitted, memorised"),
    "parts of a split": (r"\b(?:train|training|validation|test|repair) parts?\b", "training set, validation set, test set, repair set"),
    "old options": (r"--(?:floor|bound|lose|plan|level-up|norm|model-output|model-output-name|minimum)\b(?!-)", "the option's new name"),
}
# (file, phrase as it stands there): why it is right in this place.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("src/equipoise/data/splits.py", "keep aside"): "the name of a random stream: another name would give other splits from the same seed",
}


def _files() -> list[Path]:
    """README, CONTRIBUTING, the documentation and the package."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for folder in ("docs", "src/equipoise"):
        found += [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in KINDS and "_build" not in path.parts]
    return found


def _hits(word: str) -> list[tuple[str, int, str]]:
    """Every place where a phrase stands: file, line, the phrase."""
    pattern = re.compile(WORDS[word][0], re.IGNORECASE)
    return [
        (path.relative_to(ROOT).as_posix(), number, match[0])
        for path in _files()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        for match in pattern.finditer(line)
    ]


@pytest.mark.parametrize("word", WORDS)
def test_the_vocabulary_is_kept(word: str):
    hits = [f"{file}:{line}: {phrase!r}" for file, line, phrase in _hits(word) if (file, phrase) not in EXCEPTIONS]
    assert not hits, f"write: {WORDS[word][1]}\n" + "\n".join(hits)


def test_every_exception_is_still_one():
    known = {(file, phrase) for word in WORDS for file, _, phrase in _hits(word)}
    assert not [place for place in EXCEPTIONS if place not in known]


@pytest.mark.parametrize(
    ("word", "sentence"),
    [
        ("distributive article", "one row an image"),
        ("look", "three looks an epoch"),
        ("kept aside", "patients kept aside"),
        ("old options", "equipoise debias --floor 0.7"),
        ("parts of a split", "the validation part"),
    ],
)
def test_the_list_finds_what_it_is_for(word: str, sentence: str):
    assert re.search(WORDS[word][0], sentence)
    assert not re.search(WORDS[word][0], "look at one row per image of the held-out test set with --floor-plan")
