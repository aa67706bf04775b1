"""Puts the server under load, with many connections, while new versions are published.

``python -m benchmarks.serving_load --connections 200 --minutes 5`` starts ``serve`` on a copy of a
model (``--model``, by default a small random one), keeps every connection busy, publishes two
versions meanwhile, and prints requests per second, p50 and p99. Any error fails the run.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import functools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from benchmarks import harness

NUM_ITEMS = 20_000
DIM = 32
TOP_N = 20
SEED = 1


def make_model(folder: Path) -> list[str]:
    """Writes version 1 of a small retrieval model, and returns its item ids."""
    import tensorflow as tf

    random_state = np.random.default_rng(SEED)
    ids = [f"item-{number:05d}" for number in range(NUM_ITEMS)]
    module = tf.Module()
    module.items = tf.Variable(random_state.normal(size=(NUM_ITEMS, DIM)).astype(np.float32))
    module.ids = tf.constant(ids)
    module.table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(module.ids, tf.range(NUM_ITEMS)), -1
    )

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.string, name="history")])
    def recommend(history: Any) -> dict[str, Any]:
        rows = module.table.lookup(history)
        known = tf.cast(rows >= 0, tf.float32)[..., None]
        query = tf.reduce_sum(tf.gather(module.items, tf.maximum(rows, 0)) * known, axis=1)
        scores, places = tf.math.top_k(tf.matmul(query, module.items, transpose_b=True), TOP_N)
        return {"item_ids": tf.gather(module.ids, places), "scores": scores}

    tf.saved_model.save(module, str(folder / "1"), signatures={"serving_default": recommend})
    return ids


def copy_newest(source: Path, folder: Path, number: int) -> None:
    """Publishes the newest version of ``source`` as version ``number`` of ``folder``."""
    newest = max(int(path.name) for path in source.iterdir() if path.name.isdecimal())
    aside = folder / f".tmp-{number}"
    shutil.copytree(source / str(newest), aside)
    aside.rename(folder / str(number))


class Load:
    """Connections that send requests without a pause.

    Args:
      url: URL to send requests to.
      bodies: bodies of requests, which are chosen at random.
      connections: number of concurrent connections.
    """

    def __init__(self, url: str, bodies: list[bytes], connections: int):
        self.seconds: list[float] = []
        self.errors: collections.Counter[str] = collections.Counter()
        self._url = url
        self._bodies = bodies
        self._connections = connections

    async def run(self, end: float) -> None:
        """Sends requests until the clock shows ``end``."""
        connector = aiohttp.TCPConnector(limit=self._connections)
        timeout = aiohttp.ClientTimeout(total=60)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            await asyncio.gather(
                *(
                    self._ask(session, random.Random(place), end)
                    for place in range(self._connections)
                )
            )

    async def _ask(self, session: aiohttp.ClientSession, choice: random.Random, end: float) -> None:
        while (started := time.perf_counter()) < end:
            try:
                async with session.post(self._url, data=choice.choice(self._bodies)) as response:
                    answer = await response.read()
                    if response.status != 200:
                        self.errors[f"{response.status}: {answer[:200]!r}"] += 1
                    elif b'"predictions"' not in answer:
                        self.errors[f"no predictions: {answer[:200]!r}"] += 1
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
                self.errors[repr(error)[:200]] += 1
            self.seconds.append(time.perf_counter() - started)


async def _publish(
    actions: list[Callable[[], None]], base: str, seconds: float
) -> list[tuple[float, str]]:
    """Publishes versions at regular intervals; returns the seconds until each one answered."""
    seen: list[tuple[float, str]] = []
    async with aiohttp.ClientSession() as session:
        for place, action in enumerate(actions):
            await asyncio.sleep(seconds / (len(actions) + 1))
            started = time.perf_counter()
            await asyncio.to_thread(action)
            while time.perf_counter() - started < seconds:
                async with session.get(base + "/healthz") as response:
                    version = (await response.json()).get("version", "")
                if version == str(place + 2):
                    seen.append((time.perf_counter() - started, version))
                    break
                await asyncio.sleep(0.1)
    return seen


def _start(folder: Path) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pipelines",
            "serve",
            "--model",
            str(folder),
            "--port",
            "0",
            "--grpc-port",
            "0",
            "--name",
            "load",
            "--poll-seconds",
            "0.5",
        ],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ},
    )
    assert process.stdout is not None
    found = re.search(r"REST (\S+),", process.stdout.readline())
    if not found:
        raise SystemExit(f"the server did not start: exit code {process.wait()}")
    return process, found[1]


def _bodies(ids: list[str], count: int = 500) -> list[bytes]:
    choice = random.Random(SEED)
    return [
        json.dumps(
            {"instances": [choice.sample(ids, min(len(ids), choice.choice((3, 5, 8))))]}
        ).encode()
        for _ in range(count)
    ]


def _warmup_ids(model: Path) -> list[str]:
    """The item ids of a model's warm-up requests, or made-up ids if it has none."""
    from pipelines.serve.saved_model import SavedModel

    newest = max(
        (path for path in model.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name)
    )
    loaded = SavedModel(newest)
    ids = {
        item.decode()
        for _, inputs in loaded.warmup_requests()
        for item in inputs.get("history", np.array([], object)).ravel()
    }
    loaded.close()
    return sorted(ids - {""}) or ["a", "b", "c", "d", "e", "f", "g", "h"]


def main() -> int:
    """Runs the load and prints the results; fails on any error."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--model", help="folder of an exported model (a small random one)")
    parser.add_argument("--connections", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=5.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        folder.mkdir()
        if args.model:
            copy_newest(Path(args.model), folder, 1)
            ids = _warmup_ids(folder)
        else:
            ids = make_model(folder)
        process, base = _start(folder)
        try:
            load = Load(f"{base}/v1/models/load:predict", _bodies(ids), args.connections)
            seconds = 60.0 * args.minutes
            actions: list[Callable[[], None]] = [
                functools.partial(copy_newest, folder, folder, number) for number in (2, 3)
            ]
            seen = asyncio.run(_both(load, actions, base, seconds))
        finally:
            process.terminate()
            code = process.wait(60)
    p50, p99, worst = (1e3 * np.quantile(load.seconds, share) for share in (0.5, 0.99, 1.0))
    num_errors = sum(load.errors.values())
    print(harness.environment())
    print(
        f"{args.connections} connections, {args.minutes:g} min: {len(load.seconds):,} requests, "
        f"{len(load.seconds) / seconds:,.0f}/s, p50 {p50:.1f} ms, p99 {p99:.1f} ms, longest "
        f"{worst:.0f} ms, {num_errors} errors"
    )
    for after, version in seen:
        print(f"version {version} answered {after:.1f} s after its publication")
    for text, count in load.errors.most_common(5):
        print(f"  {count} x {text}")
    if code:
        print(f"the server ended with code {code}")
    return 1 if num_errors or len(seen) != 2 or code else 0


async def _both(
    load: Load, actions: list[Callable[[], None]], base: str, seconds: float
) -> list[tuple[float, str]]:
    _, seen = await asyncio.gather(
        load.run(time.perf_counter() + seconds), _publish(actions, base, seconds)
    )
    return seen


if __name__ == "__main__":
    sys.exit(main())
