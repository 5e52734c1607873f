"""What an EFS file system has stored since it was created, as CloudWatch has measured it: what AWS charges by.

EFS reports the size of each file system every 15 minutes. CloudWatch keeps averages by the hour for 455 days.
"""

from __future__ import annotations

from datetime import UTC, datetime

from flowlite.errors import ProviderError
from provider_adapters.aws.service import Service

HOUR, DAY = 3600, 86400
# One answer has 1,440 averages at most.
_MOST = 1400
_KEPT = 455 * DAY


def byte_seconds(metrics: Service, system: str, since: float, now: float) -> float | None:
    """Bytes stored in a file system, times seconds, from `since` until `now` (Unix times).

    None if it is not known: the right to `cloudwatch:GetMetricStatistics` is missing, nothing was measured yet, or the
    file system is older than what is kept.
    """
    if not 0 < now - since < _KEPT:
        return None
    period = HOUR if now - since < _MOST * HOUR else DAY
    try:
        told = metrics.call(
            "GetMetricStatistics",
            Namespace="AWS/EFS",
            MetricName="StorageBytes",
            Dimensions=[
                {"Name": "FileSystemId", "Value": system},
                {"Name": "StorageClass", "Value": "Total"},
            ],
            StartTime=datetime.fromtimestamp(since // period * period, UTC),
            EndTime=datetime.fromtimestamp(now, UTC),
            Period=period,
            Statistics=["Average"],
        )
    except ProviderError:
        return None
    averages = sorted((p["Timestamp"].timestamp(), float(p["Average"])) for p in told["Datapoints"])
    if not averages:
        return None
    # A size holds until the next one is known.
    ends = [*(at for at, _ in averages[1:]), now]
    stored: float = sum(
        size * max(0.0, min(end, now) - max(at, since))
        for (at, size), end in zip(averages, ends, strict=True)
    )
    return stored
