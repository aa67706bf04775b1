"""Joins the rows of concurrent requests, so that the model runs once for many of them.

Requests share a batch only if that does not change their answers: they have the same signature,
the same sizes after the first dimension, and the same largest ``top_n``, since that may be the
width of the answer. Nothing is padded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Mapping
from concurrent.futures import Executor

import numpy as np

from .counters import Counters
from .errors import Code, RequestError
from .limits import largest_top_n
from .saved_model import SavedModel
from .settings import BatchSettings
from .signatures import Signature

Tensors = Mapping[str, np.ndarray]


class _Request:
    def __init__(self, inputs: Tensors, answer: asyncio.Future[Tensors]):
        self.inputs = inputs
        self.answer = answer


class _Batch:
    """Requests that will run together. It grows until it is full or starts."""

    def __init__(self, key: Hashable, signature: Signature):
        self.key = key
        self.signature = signature
        self.requests: list[_Request] = []
        self.rows = 0
        self.due = False


class Batcher:
    """Runs requests on one version of a model, from one event loop.

    Args:
      model: the loaded version.
      executor: threads that run it.
      settings: how requests are batched.
      counters: where batches are counted.
    """

    def __init__(
        self, model: SavedModel, executor: Executor, settings: BatchSettings, counters: Counters
    ):
        self._model = model
        self._executor = executor
        self._settings = settings
        self._counters = counters
        self._open: dict[Hashable, _Batch] = {}
        # In the order of arrival, without those that run.
        self._waiting: dict[_Batch, None] = {}
        self._num_waiting = 0
        self._num_running = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, signature: Signature, inputs: Tensors) -> Tensors:
        """The outputs of a signature for inputs that were checked.

        Raises:
          RequestError: the model rejects the inputs, or too many requests are waiting.
        """
        if self._num_waiting >= self._settings.max_queue:
            raise RequestError(
                Code.UNAVAILABLE, f"{self._num_waiting} requests are waiting. Try again later."
            )
        loop = asyncio.get_running_loop()
        request = _Request(inputs, loop.create_future())
        key, rows = _key(signature, inputs)
        batch = self._open.get(key)
        if batch is None or batch.rows + rows > self._settings.max_batch:
            if batch is not None:
                self._fall_due(batch)
            batch = self._open[key] = _Batch(key, signature)
            self._waiting[batch] = None
            loop.call_later(self._settings.batch_wait_ms / 1000, self._fall_due, batch)
        batch.requests.append(request)
        batch.rows += rows
        self._count_waiting(1)
        if batch.rows >= self._settings.max_batch:
            self._fall_due(batch)
        return await request.answer

    def _fall_due(self, batch: _Batch) -> None:
        batch.due = True
        self._start_batches()

    def _start_batches(self) -> None:
        while self._num_running < self._settings.threads:
            batch = next((batch for batch in self._waiting if batch.due), None)
            if batch is None:
                return
            del self._waiting[batch]
            if self._open.get(batch.key) is batch:
                del self._open[batch.key]
            self._count_waiting(-len(batch.requests))
            self._num_running += 1
            task = asyncio.get_running_loop().create_task(self._run_batch(batch))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _count_waiting(self, change: int) -> None:
        self._num_waiting += change
        self._counters.queue.inc(change)

    async def _run_batch(self, batch: _Batch) -> None:
        # A client that has disconnected needs no answer.
        requests = [request for request in batch.requests if not request.answer.done()]
        try:
            if requests:
                self._counters.batch_requests.observe(len(requests))
                self._counters.batch_rows.observe(batch.rows)
                answers = await asyncio.get_running_loop().run_in_executor(
                    self._executor,
                    run_together,
                    self._model,
                    batch.signature,
                    [request.inputs for request in requests],
                )
                for request, answer in zip(requests, answers):
                    if request.answer.done():
                        continue
                    if isinstance(answer, Exception):
                        request.answer.set_exception(answer)
                    else:
                        request.answer.set_result(answer)
        except Exception as error:
            for request in requests:
                if not request.answer.done():
                    request.answer.set_exception(error)
        finally:
            self._num_running -= 1
            self._start_batches()


def run_together(
    model: SavedModel, signature: Signature, requests: list[Tensors]
) -> list[Tensors | RequestError]:
    """The answers to several requests, from one run of the model if possible.

    Args:
      model: the loaded version.
      signature: the signature that all requests ask for.
      requests: the inputs of each request, equal in all sizes but the first.

    Returns:
      The outputs of each request, or its own error: a bad request does not fail the others.
    """
    if len(requests) == 1:
        return [_run_alone(model, signature, requests[0])]
    sizes = [len(next(iter(inputs.values()))) for inputs in requests]
    joined = {name: np.concatenate([inputs[name] for inputs in requests]) for name in requests[0]}
    try:
        outputs = model.run(signature, joined)
    except RequestError:
        return [_run_alone(model, signature, inputs) for inputs in requests]
    if any(value.shape[:1] != (sum(sizes),) for value in outputs.values()):
        return [_run_alone(model, signature, inputs) for inputs in requests]
    ends = np.cumsum(sizes)[:-1]
    parts = {name: np.split(value, ends) for name, value in outputs.items()}
    return [{name: parts[name][place] for name in parts} for place in range(len(requests))]


def _run_alone(model: SavedModel, signature: Signature, inputs: Tensors) -> Tensors | RequestError:
    try:
        return model.run(signature, inputs)
    except RequestError as error:
        return error


def _key(signature: Signature, inputs: Tensors) -> tuple[Hashable, int]:
    """What the requests of a batch have in common, and the number of rows of this one."""
    sizes = {value.shape[0] if value.ndim else 0 for value in inputs.values()}
    rows = max(sizes, default=0)
    if not signature.batchable or len(sizes) != 1 or not rows:
        return object(), max(rows, 1)
    shapes = tuple((name, inputs[name].shape[1:]) for name in sorted(inputs))
    return (signature.name, shapes, largest_top_n(inputs)), rows
