"""Devices: the choice of a device, the transfer of input rows to it, and steps that are recorded on a GPU.

Raw rows (bytes, for images) are copied to a GPU once if they fit next to the network; otherwise batch by batch from pinned memory, without
waiting. Images in a read-only memory-mapped file stay there as long as they are used in this process, and feeds of the same images, or of
some of them, share the copy. Images on a GPU are channels-last, the fastest layout for its convolutions. Mini-batches of 32 keep a large
GPU busy for less time than Python needs to launch the work; a step that is recorded once and replayed avoids that. A step that cannot be
recorded (because it reads values on the CPU, for example) runs without recording.
"""

import copy
import logging
import os
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.data import Images, IntArray
from equipoise.errors import BadInput, first_line

RESIDENT_SHARE = 0.25  # share of the GPU's free memory that resident rows may take
FEW_IMAGES = 1024  # number of images up to which a copy is not worth keeping
LARGE_MATRIX = 2**22  # size of a matrix from which products with it are computed on the GPU
MATRIX_ROOM = 8  # memory for products with a matrix, as a multiple of its size
DEVICE_VARIABLE = "EQUIPOISE_DEVICE"  # the device, such as cpu or cuda:1; default: the network's, or a GPU for images
log = logging.getLogger(__name__)
Step = Callable[..., None]


class Feed:
    """Rows of inputs on a device, by their positions."""

    def __init__(self, inputs: Any, device: torch.device) -> None:  # a tensor or Images
        self.inputs, self.device = inputs, device
        self.shape = inputs.shape
        self.most = sys.maxsize  # largest batch; lowered if the device's memory is too small
        self._images = inputs if isinstance(inputs, Images) else None
        self._scale = None if self._images is None else self._images.scale(device)
        self.transform = None if self._images is None else self._images.transform
        self._resident: Tensor | None = None
        self._positions: Tensor | None = None  # of the rows among the resident ones; None: the same
        if self._images is not None and (shared := _shared_copy(self._images, device)) is not None:
            self._resident, self._positions = shared
        elif device.type == "cuda" and (self._images is not None or inputs.device != device) and _fits(inputs.nbytes, device):
            self._resident = torch.cat([self._raw(part).to(device) for part in torch.arange(len(inputs)).split(4096)])
            if self._images is not None:
                _share(self._images, self._resident)

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def resident(self) -> bool:
        """Whether all rows are on the device, so that a batch needs no copy."""
        return self._resident is not None

    def _raw(self, index: Tensor) -> Tensor:
        return self.inputs[index.to(self.inputs.device)] if self._images is None else self._images.raw(index)

    def __call__(self, index: Tensor) -> Tensor:
        """The rows at these positions, as the network takes them: normalised, and channels-last for images on a GPU."""
        if self._resident is not None:
            index = index.to(self.device, non_blocking=True)
            x = self._resident.index_select(0, index if self._positions is None else self._positions[index])
        else:
            x = to_device(self._raw(index), self.device)
        x = x if self._images is None else self._images.normalise(x, self._scale)
        return x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 and x.is_cuda else x


def _fits(size: int, device: torch.device) -> bool:
    """Whether rows of this size in bytes may stay on a GPU, if necessary after dropping copies of other images."""
    if size > RESIDENT_SHARE * torch.cuda.mem_get_info(device)[0] and _copies:
        _copies.clear()  # copies in use stay
        torch.cuda.empty_cache()
    return size <= RESIDENT_SHARE * torch.cuda.mem_get_info(device)[0]


_copies: dict[int, list[tuple[IntArray, Tensor]]] = {}  # by the id of the pixels, as long as these exist: positions, and their copy


def _share(images: Images, resident: Tensor) -> None:
    """Keeps a copy of images in a read-only memory-mapped file for other feeds; changes of writeable pixels would not reach the copy."""
    pixels = images.pixels
    if not isinstance(pixels, np.memmap) or pixels.flags.writeable or len(images) <= FEW_IMAGES:
        return
    if id(pixels) not in _copies:
        weakref.finalize(pixels, _copies.pop, id(pixels), None)
    _copies.setdefault(id(pixels), []).append((images.rows, resident))


def _shared_copy(images: Images, device: torch.device) -> tuple[Tensor, Tensor | None] | None:
    """A copy on the device that holds all of these images, and their positions in it; None if there is none."""
    for rows, resident in _copies.get(id(images.pixels), ()):
        position_of_row = np.full(len(images.pixels), -1)
        position_of_row[rows] = np.arange(len(rows))
        positions = position_of_row[images.rows]
        if resident.device == device and len(positions) and positions.min() >= 0:
            return resident, None if np.array_equal(rows, images.rows) else torch.from_numpy(positions).to(device)
    return None


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device; copied to a GPU from pinned memory, without waiting."""
    if device.type != "cuda" or tensor.device.type == "cuda":
        return tensor.to(device)
    return tensor.contiguous().pin_memory().to(device, non_blocking=True)  # views with repeated rows cannot be pinned


def device_of(model: nn.Module) -> torch.device:
    """The device of the network; the CPU for one without parameters."""
    return next((p.device for p in (*model.parameters(), *model.buffers())), torch.device("cpu"))


def requested_device() -> torch.device | None:
    """The device in EQUIPOISE_DEVICE; None if it is not set."""
    name = os.environ.get(DEVICE_VARIABLE)
    if not name:
        return None
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise BadInput(f"invalid device {name!r}: expected cpu, cuda or cuda:1, as for torch.device") from error
    if device.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if (device.index or 0) >= count:
            raise BadInput(f"the device {name!r} was asked for and PyTorch finds {count} GPUs here; use cpu, or a PyTorch built for CUDA")
        device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    return device


@contextmanager
def computing_on(device: str | None) -> Iterator[torch.device | None]:
    """The device in EQUIPOISE_DEVICE, if any; with a `device`, which is named there during the block, that one."""
    before = os.environ.get(DEVICE_VARIABLE)
    try:
        if device is not None:
            os.environ[DEVICE_VARIABLE] = device
        yield requested_device()  # an error if there is no such device
    finally:
        if before is not None:
            os.environ[DEVICE_VARIABLE] = before
        elif device is not None:
            del os.environ[DEVICE_VARIABLE]


def compute_device(model: nn.Module, inputs: Tensor | Images) -> torch.device:
    """The device to compute on: EQUIPOISE_DEVICE; otherwise a GPU, if there is one, for images; otherwise the network's own."""
    if (requested := requested_device()) is not None:
        return requested
    current = device_of(model)
    if current.type == "cpu" and len(inputs.shape) >= 4 and torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    return current


def product_device(device: torch.device, numbers: int) -> torch.device | None:
    """The device if it is a GPU for products with a matrix of this size in double precision; None if numpy is the better choice."""
    if device.type != "cuda" or numbers < LARGE_MATRIX or MATRIX_ROOM * 8 * numbers > torch.cuda.mem_get_info(device)[0]:
        return None
    return device


def on_device(model: nn.Module, device: torch.device) -> nn.Module:
    """The network itself if it is on the device, otherwise a copy there."""
    return model if device_of(model) == device else copy.deepcopy(model).to(device)


@contextmanager
def within_memory(rows: int) -> Iterator[None]:
    """Replaces the error of a device whose memory is too small for this many rows at a time by one with a remedy."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise BadInput(
            f"the device's memory is too small for {rows} rows of this network at a time. "
            f"Use batch={max(1, rows // 2)} or less, a smaller image size, or the CPU (EQUIPOISE_DEVICE=cpu)."
        ) from error


def in_layout(model: nn.Module, inputs: Tensor | Images) -> nn.Module:
    """The same network, with its kernels in the memory layout that is fastest on its device."""
    if device_of(model).type == "cuda" and len(inputs.shape) == 4:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def mixed_precision(device: torch.device) -> AbstractContextManager[object]:
    """Convolutions and matrix products in bfloat16 on a GPU, where it is several times as fast; full precision elsewhere."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()


class Captured:
    """`step(*tensors)`, recorded for tensors of the shapes of `examples`; on other shapes and on the CPU it runs directly.

    The step runs three times before it is recorded, so it may change only what it overwrites, and `untouched`, which is then restored.
    """

    def __init__(self, step: Step, examples: Sequence[Tensor], untouched: Sequence[Tensor] = (), pool: Any = None) -> None:
        self.step = step
        self._graph: torch.cuda.CUDAGraph | None = None
        if not examples[0].is_cuda:
            return
        self._inputs = [example.clone() for example in examples]
        before = [tensor.clone() for tensor in untouched]
        side = torch.cuda.Stream()
        try:
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):  # libraries choose their kernels and allocate memory in the first runs
                    self.step(*self._inputs)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                self.step(*self._inputs)
            self._graph = graph
        except RuntimeError as error:
            log.info("this network's step cannot be recorded (%s); it runs without recording", first_line(error))
            torch.cuda.synchronize()
        for tensor, old in zip(untouched, before, strict=True):
            tensor.copy_(old)

    def __call__(self, *tensors: Tensor) -> None:
        """Runs the step, or replays its recording."""
        if self._graph is None or any(t.shape != recorded.shape for t, recorded in zip(tensors, self._inputs, strict=True)):
            self.step(*tensors)
            return
        for recorded, tensor in zip(self._inputs, tensors, strict=True):
            recorded.copy_(tensor, non_blocking=True)
        self._graph.replay()


class Recorder:
    """Runs steps. On a GPU, a step that occurs more than `after` times with tensors of the same shapes is recorded, then replayed.

    A step may depend only on its tensors and constants, and change only what it overwrites and `untouched`.
    """

    def __init__(self, device: torch.device, untouched: Sequence[Tensor] = (), *, after: int = 0, record: bool = True) -> None:
        self.device, self.untouched, self.after, self.record = device, untouched, after, record and device.type == "cuda"
        self._steps: dict[tuple[object, ...], Captured] = {}
        self._occurrences: Counter[tuple[object, ...]] = Counter()
        self._pool: Any = None  # memory that all recordings share, since only one of them runs at a time

    def __call__(self, step: Step, *tensors: Tensor | None, key: object = None) -> None:
        """Runs the step. `key` identifies it if the function is a new object each time. Tensors may be on the CPU."""
        inputs = [to_device(t, self.device) for t in tensors if t is not None]
        name = (step if key is None else key, *(t.shape for t in inputs))
        if self.record:
            self._occurrences[name] += 1
        if not self.record or self._occurrences[name] <= self.after:
            step(*inputs)
            return
        if name not in self._steps:
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            self._steps[name] = Captured(step, inputs, self.untouched, self._pool)
        self._steps[name](*inputs)
