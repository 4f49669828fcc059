"""What training scripts import: a lease around the training loop, metric reports, checkpoints, elastic batches. It imports
nothing else of Fairlead and only the standard library. Outside Fairlead a script behaves as it would without it."""

from fairlead.client.elastic import Elastic, elastic
from fairlead.client.gang import GangBroken, Patience
from fairlead.client.launch_context import WorkerRoute, route
from fairlead.client.lease import Lease, lease
from fairlead.client.metric_reports import report

__all__ = ["Elastic", "GangBroken", "Lease", "Patience", "WorkerRoute", "elastic", "lease", "report", "route"]
