"""Pages of the reference that come from the code: command line, Python names, settings of the methods, data sets.

They are written when the site is built and are not kept in the repository.
"""

import importlib
import inspect
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import typer
from typer.cli import get_docs_for_click

import equipoise
from equipoise.case import case_schema

COMMON = {  # settings that mean the same in every method
    "learning_rate": "step size of the optimiser",
    "batch": "rows per mini-batch",
    "epochs": "passes over the rows, at most",
    "evals_per_epoch": "evaluations per epoch",
    "max_gap": "largest absolute gap of the constrained objective, unless the goal has one",
    "margin": "subtracted from max_gap while searching",
    "stop_below": "ends when performance falls below this",
    "optimiser": "optimiser of the weights",
    "folds": "folds by patient for cross-fitting",
    "width": "hidden units of the critic or adversary",
}
MADE = (
    "Audit",
    "Bundle",
    "Candidate",
    "Cohort",
    "Comparison",
    "Parts",
    "Scores",
)  # by functions: how they are built is no concern of users
EXTRAS: dict[str, tuple[str, ...]] = {  # what the pages tell users to import from a room
    "data": ("XRAY_RANGE", "Columns", "ImageFolder"),
    "measures": ("Measure", "add_measure", "upper_bound"),
    "models": ("OneOutput", "Repeated", "backbone", "load_heads", "load_model", "predict"),
    "case": ("audit_case", "CaseAudit", "prepare_repair", "Repaired"),
    "methods": ("method", "Step", "Work", "Note"),
    "report": ("Panel", "add_panels", "share_panel"),
    "studies": ("Recipe", "File", "read_plan", "run_study", "open_study", "summarise"),
    "sklearn": ("FairClassifier",),
    "tracking": ("log_to_mlflow", "log_to_wandb"),
}


def write_pages(folder: Path) -> None:
    """Writes every generated page into `folder`; a page that has not changed keeps its time, so that Sphinx does not read it again."""
    schema = folder / "static/case.schema.json"
    schema.write_text(json.dumps(case_schema(), indent=1, default=str) + "\n", encoding="utf-8")
    pages = {f"reference/{page.__name__}": page() for page in (commands, api, settings, case_file)} | {"concepts/_methods": methods()}
    for name, text in pages.items():
        path = folder / f"{name}.md"
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def commands() -> str:
    """The reference of the command line as Markdown, from the options themselves."""
    from equipoise.cli.app import command_line

    command = command_line.__wrapped__()  # one of its own, since a parser remembers the help options of its first context
    with typer.Context(command, info_name="equipoise") as context:
        text = get_docs_for_click(obj=command, ctx=context, name="equipoise")
    text = re.sub(
        r"(?:<span style=\"font-weight: bold\">|\[bold\])(.*?)(?:</span>|\[/bold\])\s+(equipoise (?:.|\n(?!\n))+)", _example, text
    )
    text = re.sub(r"&#x27;", "'", text).replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"').replace("&amp;", "&")
    text = re.sub(r"```console\n\$ ", "```sh\n", text)
    text = _whole_lines(text, command)
    text = text.replace(
        "# `equipoise`\n",
        "# Command line\n\nGenerated from the options. Exit code 0 means success, 1 that a condition of `--fail-if` holds, 2 bad input "
        "(one message, no traceback).\n",
        1,
    )
    return text.rstrip() + "\n"


def _whole_lines(text: str, command: Any, path: str = "equipoise") -> str:
    """The lists of commands with the whole first paragraph of each, which typer cuts after 45 characters."""
    for name, own in getattr(command, "commands", {}).items():
        paragraph = " ".join((own.help or "").split("\n\n")[0].split())
        pattern = re.compile(rf"(`{path}`\n(?:(?!\n##).)*?^\* `{re.escape(name)}`: )[^\n]*", re.MULTILINE | re.DOTALL)
        text = pattern.sub(lambda found, line=paragraph: found[1] + line, text, count=1)
        text = _whole_lines(text, own, f"{path} {name}")
    return text


def _example(found: "re.Match[str]") -> str:
    """An example of a docstring as a caption and a block of code."""
    return f"{found[1]}\n\n```sh\n{' '.join(found[2].split())}\n```"


def api() -> str:
    """The reference of the Python names as Markdown with autodoc directives: `equipoise` itself, then what users import from a room."""
    parts = [
        "# Python API\n\n`import equipoise as eq` gives the names of the first section; "
        "the others are imported from the module named above them.\n"
    ]
    parts += ["## equipoise\n", *_entries("equipoise", [name for name in equipoise.__all__ if not name.startswith("_")])]
    for room, names in EXTRAS.items():
        parts += [f"## equipoise.{room}\n", *_entries(f"equipoise.{room}", names)]
    return "\n".join(parts)


def _entries(module: str, names: Sequence[str]) -> Iterator[str]:
    """One directive per name; a constant is shown with its value."""
    loaded = importlib.import_module(module)
    for name in sorted(names, key=str.lower):
        value = getattr(loaded, name)
        if inspect.isclass(value):
            requests = [name for name in dir(value) if name.startswith("set_") and name.endswith("_request")]  # scikit-learn's own
            kind, options = "autoclass", "   :members:\n" + (f"   :exclude-members: {', '.join(requests)}\n" if requests else "")
        elif callable(value):
            kind, options = "autofunction", ""
        else:
            yield f"### {name}\n\n`{module}.{name} = {value!r}`\n"
            continue
        yield f"### {name}\n\n```{{eval-rst}}\n.. {kind}:: {module}.{name}\n{options}```\n{_table_of_fields(value)}"


def _table_of_fields(value: Any) -> str:
    """The fields of a result and their meaning, from the comments next to them; empty for anything else."""
    if not (inspect.isclass(value) and is_dataclass(value)):
        return ""
    lines = [f"| `{name}` | {meaning} |" for name, _, meaning in _fields(value) if not name.startswith("_") and meaning]
    return "\n| field | meaning |\n|---|---|\n" + "\n".join(lines) + "\n" if lines else ""


def methods() -> str:
    """The registered methods as a Markdown table: what they do, and what they need."""
    from equipoise.methods import METHODS

    lines = []
    for name, known in METHODS.items():
        group, labels = "**yes**" if known.needs_group else "no", "yes" if known.labels else "no"
        if name == "auto":  # its rule is that of the method it takes
            group = "only if clearly better"
        train = "required" if known.needs_train else "optional" if known.takes_train else "no"
        lines.append(f"| [`{name}`](#{name}) | {known.title} | {group} | {labels} | {train} |\n")
    header = "| method | what it does | uses the group at prediction time | multi-label | training set |\n|---|---|---|---|---|\n"
    return header + "".join(lines)


def settings() -> str:
    """The settings of every method as Markdown: name, default and meaning."""
    from equipoise.methods import METHODS

    parts = ["# Settings of the methods\n\nKeywords of `eq.debias` and, as `--set METHOD.SETTING=VALUE`, options of `equipoise debias`.\n"]
    for name, method in METHODS.items():
        if fields(method.settings):
            lines = [f"| `{field}` | `{default}` | {comment} |" for field, default, comment in _fields(method.settings)]
            parts.append(f"## {name}\n\n{method.title}\n\n| setting | default | meaning |\n|---|---|---|\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


CASE_FILE = """# The case file

What a hospital knows is written down once, and every command reads it:

```toml
# case.toml
[data]
table = "local.csv"
label = "pneumonia"
group = "sex"
reference = "M"
patient = "patient_id"

[images]
folder = "xrays/"
size = 224

[model]
load = "my_model.py:build"
weights = "net.safetensors"
threshold = 0.4

[goal]
measure = "eod"
max_gap = 0.05

[report]
words = { F = "women", M = "men" }

[pruning]
units = 1500
```

```sh
equipoise audit case.toml
equipoise debias case.toml --out repaired/
```

`equipoise init TABLE` writes it. Its first line names its JSON Schema, so that editors complete and check it; this site has it as
`_static/case.schema.json`.

Paths are relative to the file. A flag overrides the file, and `--set section.key=value` reaches every setting, with or without a file; the
value is read as TOML, or else as text. A list is given by repeating it, and a key of a table by one more point:

```sh
equipoise audit scores.csv --label y --score p --group sex --set audit.level=0.9 --set report.words.F=women
```

In Python, `eq.Case.load("case.toml")` is the same object: `.audit()` returns the audit and `.debias().save("repaired/")` writes the bundle.
All problems of a case come in one message, which names the setting and its flag.

Below `[goals.LABEL]` stand the parts of the goal that one of several labels has for itself, and below the name of a method its
[settings](settings.md).

"""


def case_file() -> str:
    """The page of the case file as Markdown, with a table of the settings of each section, from the fields themselves."""
    from equipoise.case import Case
    from equipoise.specification import extra_of, fields_of

    parts = [CASE_FILE]
    for section in fields_of(Case):
        lines = []
        for key, field in fields_of(Case, section).items():
            extra, default = extra_of(field), field.get_default(call_default_factory=True)
            shown = extra.get("shown") or ("" if default in (None, (), {}) else f"`{default}`")
            help = f"{(field.description or '')[:1].upper()}{(field.description or '')[1:].rstrip('.')}.".replace("|", "\\|")
            flag = f"`{extra['flag']}`" if extra.get("flag") else ""
            lines.append(f"| `{key}` | {flag} | {shown} | {help} |")
        if lines:
            head = "| setting | flag | default | meaning |\n|---|---|---|---|\n"
            parts.append(f"## [{section}]\n\n{head}" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _fields(of: type) -> Iterator[tuple[str, str, str]]:
    """Name, default and trailing comment of every field, as they are written."""
    for line in inspect.getsource(of).splitlines():
        found = re.match(r"    (\w+): [^=]+?(?: = (?P<default>.+?))?(?:\s+# (?P<comment>.+))?$", line)
        if found and found[1] in {field.name for field in fields(of)}:  # type: ignore[arg-type]
            yield found[1], (found["default"] or "").replace("|", "\\|"), (found["comment"] or COMMON.get(found[1], "")).replace("|", "\\|")


def plain_docstring(_app: Any, _what: str, _name: str, _value: Any, _options: Any, lines: list[str]) -> None:
    """Escapes what reStructuredText would read as markup in a docstring of plain text, such as the bars of |gap|."""
    example = False
    for k, line in enumerate(lines):
        example = line.lstrip().startswith(">>>") or (example and bool(line.strip()))
        if not example:
            pieces = re.split(r"(`[^`]*`)", line)
            lines[k] = "".join(piece if piece.startswith("`") else re.sub(r"([*|]|(?<=\w)_(?!\w))", r"\\\1", piece) for piece in pieces)


def plain_signature(_app: Any, what: str, name: str, _value: Any, _options: Any, given: str | None, returned: str | None) -> Any:
    """A signature with short names of types, and none for a class that users get from a function."""
    if what == "class" and name.rpartition(".")[2] in MADE:
        return "", None

    def short(text: str | None) -> str | None:
        return re.sub(r"~?\b(?:[a-z_]\w*\.)+([A-Za-z_]\w*)", r"\1", text).replace("<factory>", "...") if text else text

    return short(given), short(returned)
