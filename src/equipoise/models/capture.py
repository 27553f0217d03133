"""A step on a GPU, recorded once and played again: the GPU gets its hundreds of small kernels without Python in between.

Mini-batches of 32 keep a large GPU busy for less time than Python needs to ask for the work; a recorded step takes that away. A step that
cannot be recorded (it looks at values on the CPU, say) is run as it is.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

log = logging.getLogger(__name__)
Step = Callable[..., None]
Pool = Any  # memory that several recordings share, since only one of them plays at a time


class Captured:
    """`step(*tensors)` for tensors of the shapes of `examples`; other shapes, and the CPU, run it as it is.

    The step must not change anything that it does not write anew each time, but for what `untouched` puts back after the rehearsals.
    """

    def __init__(self, step: Step, examples: Sequence[Tensor], untouched: Sequence[Tensor] = (), pool: Pool | None = None) -> None:
        self.step, self.pool = step, pool
        self._graph: torch.cuda.CUDAGraph | None = None
        if not examples[0].is_cuda:
            return
        self._inputs = [example.clone() for example in examples]
        before = [tensor.clone() for tensor in untouched]
        try:
            self._record()
        except RuntimeError as error:
            log.info("this network's step cannot be recorded (%s); it runs as it is", str(error).splitlines()[0])
            self._graph = None
            torch.cuda.synchronize()
        for tensor, old in zip(untouched, before, strict=True):
            tensor.copy_(old)

    def _record(self) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # libraries choose their kernels and take their memory in the first runs
                self.step(*self._inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            self.step(*self._inputs)
        self._graph = graph

    def __call__(self, *tensors: Tensor) -> None:
        """Runs the step."""
        if self._graph is None or any(t.shape != own.shape for t, own in zip(tensors, self._inputs, strict=True)):
            self.step(*tensors)
            return
        for own, tensor in zip(self._inputs, tensors, strict=True):
            own.copy_(tensor, non_blocking=True)
        self._graph.replay()
