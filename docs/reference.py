"""The API reference as Markdown, from the docstrings and signatures of the code itself."""

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import equipoise
from equipoise.methods import METHODS

MODULES: dict[str, tuple[str, ...]] = {  # what a user is told to import, beside `equipoise` itself
    "equipoise.data.images": ("Images", "XRAY_RANGE", "UNIT_RANGE"),
    "equipoise.data.phantom": ("phantom", "phantom_parts", "phantom_oracle"),
    "equipoise.data.splits": ("keep_aside",),
    "equipoise.models.training": ("IMAGES",),
    "equipoise.models.vision": ("backbone", "OneOutput", "Calibrated", "Repeated"),
    "equipoise.models.score": ("predict",),
    "equipoise.models.checkpoint": ("load_model", "load_weights"),
    "equipoise.models.export": ("to_onnx", "save_weights"),
    "equipoise.models.ranks": ("begin", "size", "rank"),
    "equipoise.measures.gaps": ("RATES", "GAPS", "MEANING", "terms"),
    "equipoise.measures.decision": ("Rule", "Threshold", "best_threshold"),
    "equipoise.measures.sweep": ("sweep", "Sweep"),
    "equipoise.measures.noise": ("noise_floor",),
    "equipoise.methods.contract": ("METHODS", "Method", "method"),
    "equipoise.methods.registry": ("run_many",),
    "equipoise.methods.looks": ("Labels",),
    "equipoise.methods.selection": ("Search", "select", "plain_rule"),
    "equipoise.methods.rules": ("read_rule", "rule_to_dict"),
    "equipoise.report.served": ("open_repaired", "Repaired"),
    "equipoise.report.case": ("Case", "Repair", "Provenance"),
    "equipoise.report.page": ("write_page",),
    "equipoise.report.card": ("write_cards",),
}
INTRODUCTION = """\
# API reference

Made from the docstrings. `import equipoise as eq` gives the names of the first section; all others are imported from the module named
above them. Nothing else is promised to stay.
"""


def reference() -> str:
    """The whole page."""
    parts = [INTRODUCTION, "## equipoise\n"]
    for name in equipoise.__all__:
        if name != "__version__":
            parts += entry(name, getattr(equipoise, name))
    parts.append(
        "## Settings of the methods\n\nKeywords of `eq.debias` and, as `--set METHOD.SETTING=VALUE`, options of `equipoise debias`.\n"
    )
    for name, method in METHODS.items():
        settings = method.settings
        if fields(settings):
            parts += [f"### {name}\n", prose(settings), source_block(field_lines(settings))]
    for module, names in MODULES.items():
        loaded = importlib.import_module(module)
        parts.append(f"## {module}\n\n{prose(loaded)}\n")
        for name in names:
            parts += entry(name, getattr(loaded, name), loaded)
    return "\n".join(parts)


def entry(name: str, value: Any, module: Any = None) -> Iterator[str]:
    """One public name: its signature as written, its docstring, and for a class its public members."""
    yield f"### {name}\n"
    if inspect.isclass(value):
        if is_dataclass(value):
            yield source_block(f"@dataclass\nclass {name}:\n" + textwrap.indent(field_lines(value), "    "))
        else:
            yield source_block(class_signature(name, value))
        yield prose(value)
        for member, found in vars(value).items():
            inner = found.__func__ if isinstance(found, (classmethod, staticmethod)) else found
            if member.startswith("_") or not (inspect.isfunction(inner) or isinstance(inner, property)) or not inner.__doc__:
                continue
            yield f"#### {name}.{member}\n"
            if inspect.isfunction(inner):
                yield source_block(signature(inner))
            yield prose(inner)
    elif inspect.isfunction(value):
        yield source_block(signature(value))
        yield prose(value)
    else:
        yield source_block(assignment(name, module))


def signature(function: Any) -> str:
    """A function's head with its types as they are written, one parameter a line where it is long."""
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(node, ast.FunctionDef)
    drop_self(node.args)
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    returns = returns.replace("'", "").replace('"', "")
    inside = split_arguments(node.args)
    head = f"def {node.name}({', '.join(inside)}){returns}"
    if len(head) <= 90:
        return head
    return f"def {node.name}(\n" + "".join(f"    {part},\n" for part in inside) + f"){returns}"


def drop_self(arguments: ast.arguments) -> None:
    """Without the first parameter of a method, which no caller gives."""
    if arguments.args and arguments.args[0].arg in ("self", "cls"):
        del arguments.args[0]


def split_arguments(arguments: ast.arguments) -> list[str]:
    """The parameters one by one, as they are written."""
    parts = []
    plain = arguments.posonlyargs + arguments.args
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    for argument, default in zip(plain, defaults, strict=True):
        parts.append(ast.unparse(argument) + (f" = {ast.unparse(default)}" if default is not None else ""))
    if arguments.vararg:
        parts.append(f"*{ast.unparse(arguments.vararg)}")
    elif arguments.kwonlyargs:
        parts.append("*")
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        parts.append(ast.unparse(argument) + (f" = {ast.unparse(default)}" if default is not None else ""))
    if arguments.kwarg:
        parts.append(f"**{ast.unparse(arguments.kwarg)}")
    return parts


def class_signature(name: str, value: type) -> str:
    """What an ordinary class is made with."""
    own = vars(value).get("__init__")
    bases = ", ".join(base.__name__ for base in value.__bases__ if base is not object)
    head = f"class {name}({bases})" if bases else f"class {name}"
    return head if own is None or not inspect.isfunction(own) else f"{head}\n\n{signature(own)}"


def field_lines(value: type) -> str:
    """The fields of a dataclass as they are written, comments and all."""
    text = textwrap.dedent(inspect.getsource(value))
    lines = text.splitlines()
    body = ast.parse(text).body[0]
    assert isinstance(body, ast.ClassDef)
    found = [line for node in body.body if isinstance(node, ast.AnnAssign) for line in lines[node.lineno - 1 : node.end_lineno]]
    return textwrap.dedent("\n".join(found)) or "..."


def assignment(name: str, module: Any) -> str:
    """A constant as it is written."""
    text = inspect.getsource(module)
    for node in ast.parse(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return "\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno])
    imported = next((n for n in ast.parse(text).body if isinstance(n, ast.ImportFrom) and any(a.name == name for a in n.names)), None)
    assert imported is not None, name
    return assignment(name, importlib.import_module(str(imported.module)))


def source_block(text: str) -> str:
    return f"```python\n{text}\n```\n"


def prose(value: Any) -> str:
    """A docstring as Markdown; its examples become blocks of code."""
    parts, lines = [], (inspect.getdoc(value) or "").splitlines()
    while lines:
        if lines[0].startswith(">>>"):
            block = []
            while lines and lines[0].strip():
                block.append(lines.pop(0))
            parts.append("```pycon\n" + "\n".join(block) + "\n```")
        else:
            block = []
            while lines and not lines[0].startswith(">>>"):
                block.append(lines.pop(0))
            parts.append("\n".join(block).strip())
    return "\n\n".join(part for part in parts if part) + "\n"
