"""The classifier of a bundle: its network or estimator from verified files, and code that it needs, which runs on request only."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from equipoise.case.schema import OWN_NETWORK, Run, ServedImages
from equipoise.case.verify import Verified
from equipoise.data import Transform, as_transform, sha256
from equipoise.errors import BadInput, Untrusted
from equipoise.measures import FloatArray
from equipoise.models import (
    HEADS,
    ORIGINAL_ONNX,
    PROGRAM,
    REPAIRED_PROGRAM,
    Code,
    OneClass,
    OneOutput,
    as_matrix,
    code_of,
    load_heads,
    load_transform,
    output_named,
    outputs,
    saved_network,
    sigmoid,
)

Running = Callable[[Code], None] | None


def network_of(files: Verified, model: object, trust: bool, running: Running) -> tuple[nn.Module, Code | None]:
    """The network of a bundle with its repair, in eval mode, and the code that was run to build it, if any."""
    saved, code = files.run.network, None
    named, given = model if isinstance(model, str) else None, model if isinstance(model, nn.Module) else None
    if ORIGINAL_ONNX in files.contents and model is not None:
        raise BadInput(f"{files.folder} holds its ONNX file. Omit --model {model}.")
    if ORIGINAL_ONNX not in files.contents and given is None:
        code = _code_to_run(files, named, trust)
        if code is not None and running is not None and (named is None or named.endswith(PROGRAM)):
            running(code)
    load = named or str(saved.load)
    network = saved_network(files.contents, files.source, None if load == OWN_NETWORK else load, code, given)
    if saved.output_name is not None:
        network = OneOutput(network, output_named(saved.output_name)).eval()
    if (classes := saved.classes) is not None:
        network = OneClass(network, classes.columns, classes.names.index(files.run.label), classes.output).eval()
    if files.run.heads:  # they hold the repair
        network = load_heads(network, files.source(HEADS), files.contents[HEADS])
    return network, code


def network_scores(network: nn.Module, run: Run, inputs: Any) -> tuple[FloatArray, dict[str, Any]]:
    """The score of each row, and further columns: with a network of classes, the class that argmax decides for."""
    columns: dict[str, Any] = {}
    inputs = torch.tensor(inputs) if isinstance(inputs, np.ndarray) else inputs
    if isinstance(network, OneClass) and run.network.classes is not None:
        logits = outputs(network.inner, inputs, taken=as_matrix)
        columns["class"] = np.array(run.network.classes.names, dtype=object)[logits[:, network.columns].argmax(1).numpy()]
        raw = network.taken(logits).double()
    else:
        raw = outputs(network, inputs).double()
    if invalid := int((~torch.isfinite(raw)).sum()):
        raise BadInput(f"the network returned NaN or infinity for {invalid:,} of {len(raw):,} rows. Check for missing or unscaled inputs.")
    return np.asarray((sigmoid(raw) if run.network.output == "logit" else raw).numpy(), dtype=np.float64), columns


# Code that a bundle needs


def _code_to_run(files: Verified, model: str | None, trust: bool) -> Code | None:
    """The code that builds the network of a bundle; None for a network of Equipoise. Runs nothing; raises an error without trust."""
    recorded = files.run.network
    if model is not None:
        code = code_of(model)
        if code is not None and model.endswith(PROGRAM) and code.sha256 != files.run.files.get(REPAIRED_PROGRAM):
            raise BadInput(
                f"the exported program {model} contains its weights and is not the repaired one. Omit --model, or name the "
                "factory of the network, as file.py:factory."
            )
        return code
    if REPAIRED_PROGRAM in files.contents:
        content, path = files.contents[REPAIRED_PROGRAM], (files.folder / REPAIRED_PROGRAM).absolute()
        code, expected = Code(str(path), path, sha256(content), content), files.run.files[REPAIRED_PROGRAM]
    elif (load := recorded.load) is None:
        raise BadInput(f"{files.folder} was saved from Python and does not name the network's code. Give the network: model=network")
    elif load == OWN_NETWORK:
        return None
    else:
        path_name, _, name = load.rpartition(":")
        if path_name.endswith(".py") and not Path(path_name).is_file():
            raise BadInput(f"the network's code, {path_name}, no longer exists. Name its present location: --model file.py:{name}")
        code, expected = code_of(load, here=False), "" if recorded.code is None else recorded.code.sha256
    if code is None:
        return None
    place, _, name = code.named.rpartition(":")
    argument = f"--model {f'{code.path}:{name}' if place.endswith('.py') else code.named}"
    _check_code(code, expected, f"If it still builds the same network, name it: {argument}", "the network's code")
    _check_trust(code, trust, f"{files.folder} needs code to build its network", f"or name the code yourself: {argument}")
    return code


def transform_to_serve(
    images: ServedImages | None, folder: Path, given: str | Callable[[Any], Any] | None, trust: bool, running: Running
) -> Transform | None:
    """The custom transform of new images, or None if there is none; raises an error if it is not that of the repair.

    Its code runs only if it is named (`given`) or trusted, and only with the checksum of the repair: it decides what the network sees.
    """
    recorded = None if images is None else images.transform
    if recorded is None:
        if given is not None:
            raise BadInput(f"the network in {folder} takes images without a transform. Omit images.transform (transform=).")
        return None
    if given is not None and not isinstance(given, str):
        return as_transform(given)
    if recorded.path is None:
        raise BadInput(
            f"{folder} was saved from Python with the transform {recorded.named}, whose code it does not name. Give it: transform="
        )
    name = recorded.named.rpartition(":")[2]
    if given is None and not Path(recorded.path).is_file():
        instead = f"--set images.transform=file.py:{name}"
        raise BadInput(f"the code of the transform, {recorded.path}, no longer exists. Name its present place: {instead}")
    named = given or f"{recorded.path}:{name}"
    code = code_of(named, here=given is not None)
    _check_code(code, recorded.sha256, "Restore the file of the repair, or repair again with the new one.", "the transform")
    if given is None and code is not None:
        _check_trust(code, trust, f"{folder} needs code to prepare its images", f"or name it: --set images.transform={named}")
        if running is not None:
            running(code)
    return load_transform(named, code)


def _check_code(code: Code | None, expected: str, remedy: str, what: str) -> None:
    found = "" if code is None else code.sha256
    if code is None or found != expected:
        raise Untrusted(f"{what} has changed since the repair: {code}. Its SHA-256 is {found}, and run.json has {expected}. {remedy}")


def _check_trust(code: Code, trust: bool, needs: str, instead: str) -> None:
    if not trust:
        raise Untrusted(
            f"{needs}, which would run with all your rights: {code}. Its SHA-256 is {code.sha256}, the same as in the repair. "
            f"Read it, then run it with --trust (Python: trust=True), {instead}"
        )
