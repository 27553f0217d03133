"""Anything that classifies rows, in the form that audits and repairs take: a network, or a `Predictor`."""

from pathlib import Path

from torch import nn
from torch.export import ExportedProgram

from equipoise.models.exported import ExportedNetwork
from equipoise.models.hugging_face import HuggingFaceNetwork, is_classifier, is_folder
from equipoise.models.loading import includes_weights, load_model
from equipoise.models.onnx_network import OnnxNetwork, is_session
from equipoise.models.predictor_files import is_estimator_file, load_predictor
from equipoise.models.predictors import Predictor, can_predict, predictor


def classifier(subject: object) -> nn.Module | Predictor | None:
    """The network or predictor that an object is, or that a file holds; None for anything that cannot classify rows.

    A file is an exported program (.pt2), an ONNX file (.onnx), an estimator (.skops) or a folder of transformers.
    """
    if isinstance(subject, nn.Module):
        return HuggingFaceNetwork(subject) if is_classifier(subject) else subject
    if isinstance(subject, Predictor):
        return subject
    if isinstance(subject, ExportedProgram):
        return ExportedNetwork(subject, "an exported program")
    if is_session(subject):
        return OnnxNetwork(b"", "an ONNX session", session=subject)
    if isinstance(subject, (str, Path)):
        named = str(subject)
        if is_estimator_file(named):
            return load_predictor(named)
        return load_model(named) if includes_weights(named) or is_folder(named) else None
    return predictor(subject) if can_predict(subject) else None
