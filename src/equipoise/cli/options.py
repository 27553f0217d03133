"""Options made from the fields of a specification: the daily flags, `--set section.key=value`, and the case file under both.

`takes_case` replaces the parameter `case` of a command by the flags of some sections and `--set`.
"""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import get_close_matches
from functools import partial, wraps
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo

from equipoise import case as cases
from equipoise.errors import BadInput, raise_all
from equipoise.specification import Specification, extra_of, fields_of

OPTION_PANELS = {"images": "Model", "model": "Model", "goal": "Goal", "repair": "Goal", "history": "Pipelines"}  # by section
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="Any other setting of a case, as in audit.level=0.9 or pruning.units=1500; repeat it for more. All of them: see the page "
        "'The case file' of the documentation.",
    ),
]
CaseArgument = Annotated[
    Path,
    typer.Argument(
        help="CSV or Parquet file with one row per sample (audit: or a folder of them), a case file (.toml), or the folder of a repair."
    ),
]
Setting = tuple[str, str, FieldInfo]  # section, key and field


def settings_of(kind: type[Specification], *sections: str) -> list[Setting]:
    """Every setting of a specification; with `sections`, of these only."""
    chosen = [section for section in fields_of(kind) if not sections or section in sections]
    return [(section, key, field) for section in chosen for key, field in fields_of(kind, section).items()]


def takes_case(
    kind: type[Specification], *sections: str, only: Collection[str] = (), unread: Collection[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator that replaces the parameter `case` of a command by the flags of sections (or `only` some flags) and `--set`.

    The command gets a function that makes the specification, of a case file or a bare table if it is given one. Sections that it leaves
    `unread` may be in the file, which other commands read too, but not in `--set`.
    """
    settings = settings_of(kind, *(() if only else sections))
    flags = {str(flag): found for found in settings if (flag := extra_of(found[2]).get("flag")) and (not only or flag in only)}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command, eval_str=True)
        keyword = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY, default=None)
        names = {f"flag_{flag.lstrip('-').replace('-', '_')}": flag for flag in flags}  # by parameter
        options = [keyword(name, annotation=_option(flag, flags[flag])) for name, flag in names.items()]
        parameters: list[inspect.Parameter] = []
        for parameter in signature.parameters.values():
            parameters += options if parameter.name == "case" else [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
        parameters.append(keyword("sets", annotation=SetOption))

        @wraps(command)
        def wrapper(**given: Any) -> None:
            by_flag = [(*flags[flag][:2], given.pop(name)) for name, flag in names.items()]
            command(case=partial(_specification, kind, by_flag, given.pop("sets") or (), unread), **given)

        wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        wrapper.specification = kind, sections  # type: ignore[attr-defined]
        return wrapper

    return decorate


def _specification(
    kind: type[Specification],
    by_flag: Iterable[tuple[str, str, Any]],
    sets: Collection[str],
    unread: Collection[str],
    file: Path | None = None,
) -> Any:
    """The specification of the values of a file, changed by `--set`, changed by flags; raises one error with every problem.

    Of a case that a file is given for, with the score column of each label.
    """
    values: dict[str, Any] = {} if file is None else {"data": {"table": file}}
    if file is not None and (file.suffix.lower() == ".toml" or cases.is_bundle(file)):
        values = cases.read_case_file(file)
    elif file is not None and (other := next((value for *_, key, value in by_flag if key == "table" and value), None)):
        raise BadInput(f"{file} and --table {other} are two tables. Name one, or a case file and --table.")
    if sets:
        _add_settings(values, kind, sets, unread)
    for section, key, value in by_flag:
        if value is not None:
            values.setdefault(section, {})[key] = value
    case = kind(**values)
    return case if file is None else case.with_pairs()  # type: ignore[attr-defined]


def _add_settings(values: dict[str, Any], kind: type[Specification], sets: Iterable[str], unread: Collection[str]) -> None:
    """Puts the values of `--set` in their place; a key that is given several times is a list."""
    problems: list[str] = []
    found: dict[tuple[str, ...], list[Any]] = {}
    for text in sets:
        place, equals, value = text.partition("=")
        section, _, rest = place.partition(".")
        key, _, inner = rest.partition(".")
        if not equals or not key:
            problems.append(f"--set must be SECTION.KEY=VALUE, as in audit.level=0.9 or pruning.units=1500; got {text!r}")
            continue
        if section in unread:
            others = [name for name in fields_of(kind) if name not in unread and key in fields_of(kind, name)]
            instead = f"Use --set {others[0]}.{key}, or omit it." if others else "Omit it."
            problems.append(f"--set {place}: this command does not read [{section}]. {instead}")
        field = fields_of(kind, section).get(key)
        given = found.setdefault((section, key, inner) if inner else (section, key), [])
        given.append(_read_setting(value.strip(), field))
        if len(given) == 2 and section in fields_of(kind) and (inner or field is None or not _takes_many(field)):
            problems.append(f"--set {place} was given twice, and takes one value. Give it once.")
    raise_all(problems)
    for (section, *keys), given in found.items():
        at = values.setdefault(section, {})
        for key in keys[:-1]:
            at[key] = dict(at[key]) if isinstance(at.get(key), Mapping) else {}
            at = at[key]
        field = fields_of(kind, section).get(keys[0])
        a_list = field is not None and len(keys) == 1 and str(field.annotation).startswith("tuple[") and isinstance(given[0], str)
        at[keys[-1]] = given[0] if len(given) == 1 and not a_list else given


def _read_setting(text: str, field: FieldInfo | None) -> Any:
    """The value of a setting: as in TOML, or an object as in JSON, or else as text; a field that holds text takes a number as text."""
    try:
        value = json.loads(text) if text.startswith("{") and ":" in text else tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, json.JSONDecodeError):
        return text
    if field is None or isinstance(value, (str, list, dict)):
        return value
    kind = str(field.annotation)
    return value if any(name in kind for name in ("int", "float", "bool")) else text


def check_option(flag: str, kind: type[Specification], sections: tuple[str, ...]) -> None:
    """Raises an error about an option that does not exist if a setting that `--set` reaches is called like it."""
    name = flag.lstrip("-").replace("-", "_").removeprefix("no_")
    settings = sorted(settings_of(kind), key=lambda found: found[0] not in sections)
    for section, key, _ in settings:
        if key == name:
            instead = f"--set {section}.{key}=VALUE, or {key} in [{section}] of a case file"
            raise BadInput(f"no such option: {flag}. It is a setting: {instead}.") from None
    keys = {key: f"{section}.{key}" for section, key, _ in reversed(settings)}
    near = get_close_matches(name, keys, n=1, cutoff=0.6)
    flags = [str(extra_of(field).get("flag")) for _, _, field in settings_of(kind, *sections)]
    if near and not get_close_matches(flag, flags, n=1, cutoff=0.7):  # otherwise the parser names the flag
        raise BadInput(f"no such option: {flag}. Did you mean the setting --set {keys[near[0]]}=VALUE?") from None


def _option(flag: str, setting: Setting) -> Any:
    """The annotation of a flag for typer."""
    section, _, field = setting
    kind, extra = str(field.annotation), extra_of(field)
    taken: Any = list[str] if _takes_many(field) else next((held for held in (bool, int, float, Path) if held.__name__ in kind), str)
    names = f"{flag}/--no-{flag.removeprefix('--')}" if taken is bool else flag
    help = f"{(field.description or '')[:1].upper()}{(field.description or '')[1:].rstrip('.')}."
    shown = extra.get("shown") or (False if field.is_required() or field.default in (None, (), ...) else str(field.default))
    shown = False if "PydanticUndefined" in str(shown) else shown
    return Annotated[taken | None, typer.Option(names, help=help, show_default=shown, rich_help_panel=OPTION_PANELS.get(section))]


def _takes_many(field: FieldInfo) -> bool:
    return bool(extra_of(field).get("many") or re.search("tuple|dict", str(field.annotation)))
