"""The statistics of all allocators for ``prometheus_client``, which serves them to Prometheus.

>>> import bfc.prometheus
>>> prometheus_client.REGISTRY.register(bfc.prometheus.Collector())    # doctest: +SKIP
>>> prometheus_client.start_http_server(9464, addr="127.0.0.1")        # doctest: +SKIP

docs/metrics.md in libbfc's source lists the metrics. ``prometheus_client``'s multiprocess mode ignores collectors of this kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ._reports import metrics

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.registry import Collector as _Collector
else:
    # prometheus_client requires only the methods.
    _Collector = object

__all__ = ["Collector"]


class Collector(_Collector):  # type: ignore[misc, unused-ignore]
    """A collector of ``prometheus_client``: reads the statistics of all allocators of the process at each scrape.

    It can be registered before an allocator is created. Register one per process. It may be used by any thread.

    :raises ImportError: prometheus_client is not installed.
    """

    def __init__(self) -> None:
        from prometheus_client.openmetrics import parser

        self._parse = parser.text_string_to_metric_families

    def collect(self) -> Iterator[Metric]:
        """Returns all metrics, without allocators as metrics without samples.

        :raises bfc.Error: see :func:`bfc.metrics`. A scrape then fails with the message.
        """
        families: Iterator[Metric] = self._parse(metrics())
        return families
