"""Counters and histograms under TensorFlow Serving's names, in Prometheus' text format.

The names begin with a colon and the counters have no `_total`, which the usual client library
does not write; the format itself is a few lines.
"""

from __future__ import annotations

import bisect
import threading
from collections import defaultdict
from collections.abc import Iterator

_PREFIX = ":tensorflow:serving:"
# Microseconds; TensorFlow Serving's exponential buckets.
BOUNDS = tuple(10 * 1.8**power for power in range(33))
# Examples of a request.
_COUNT_BOUNDS = tuple(float(2**power) for power in range(20))

Labels = tuple[tuple[str, str], ...]


class _Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value


class Metrics:
    """What the server counts; every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[str, dict[Labels, float]] = defaultdict(lambda: defaultdict(float))
        self._histograms: dict[str, dict[Labels, _Histogram]] = defaultdict(dict)

    def request(self, model: str, api: str, entrypoint: str, status: str, seconds: float) -> None:
        """Counts a finished request of a client; `status` is the name of its code."""
        with self._lock:
            self._counters["request_count"][_labels(model_name=model, status=status)] += 1
            self._observe(
                "request_latency",
                _labels(model_name=model, API=api, entrypoint=entrypoint),
                seconds * 1e6,
            )

    def run(self, model: str, api: str, examples: int, seconds: float) -> None:
        """Counts a call of a model: its examples, and the time from the queue to the answer."""
        with self._lock:
            self._counters["request_example_count_total"][_labels(model=model)] += examples
            self._observe(
                "request_example_counts", _labels(model=model), float(examples), _COUNT_BOUNDS
            )
            labels = _labels(model_name=model, API=api, runtime="TF1")
            self._observe("runtime_latency", labels, seconds * 1e6)

    def batch(self, model: str, examples: int, waited_s: float) -> None:
        """Counts a merged batch and the longest wait in it."""
        labels = _labels(thread_pool_name=model)
        with self._lock:
            self._observe("batching_session:queuing_latency", labels, waited_s * 1e6)
            self._counters["batching_session:wrapped_run_count"][()] += 1
            self._counters["batching_session:examples"][labels] += examples

    def warmup(self, model_path: str, status: str, records: int, seconds: float) -> None:
        """Counts the warm-up of a version."""
        labels = _labels(model_path=model_path, status=status)
        with self._lock:
            self._observe("model_warmup_latency", labels, seconds * 1e6)
            self._counters["model_warmup_records_read"][_labels(model_path=model_path)] += records

    def _observe(
        self, name: str, labels: Labels, value: float, bounds: tuple[float, ...] = BOUNDS
    ) -> None:
        family = self._histograms[name]
        if labels not in family:
            family[labels] = _Histogram(bounds)
        family[labels].add(value)

    def text(self) -> str:
        """Returns everything in Prometheus' text format, version 0.0.4."""
        with self._lock:
            return "\n".join([*self._counter_lines(), *self._histogram_lines(), ""])

    def _counter_lines(self) -> Iterator[str]:
        for name, series in sorted(self._counters.items()):
            yield f"# TYPE {_PREFIX}{name} counter"
            for labels, value in sorted(series.items()):
                yield f"{_PREFIX}{name}{_braces(labels)} {value:.17g}"

    def _histogram_lines(self) -> Iterator[str]:
        for name, series in sorted(self._histograms.items()):
            yield f"# TYPE {_PREFIX}{name} histogram"
            for labels, histogram in sorted(series.items()):
                count = 0
                bounds = [f"{bound:.9g}" for bound in histogram.bounds] + ["+Inf"]
                for bound, number in zip(bounds, histogram.counts, strict=True):
                    count += number
                    yield f"{_PREFIX}{name}_bucket{_braces((*labels, ('le', bound)))} {count}"
                yield f"{_PREFIX}{name}_sum{_braces(labels)} {histogram.total:.17g}"
                yield f"{_PREFIX}{name}_count{_braces(labels)} {count}"


def _labels(**labels: str) -> Labels:
    return tuple(labels.items())


def _braces(labels: Labels) -> str:
    return (
        "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels) + "}"
        if labels
        else ""
    )


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
