"""What a training script uses: a lease around its loop, reports, checkpoints. It imports nothing else of Fairlead but the rule
of passes, and nothing beyond the standard library; outside Fairlead a script with it runs as it would without."""

from fairlead.client.elastic import Elastic, elastic
from fairlead.client.gang import GangBroken, Patience
from fairlead.client.lease import Lease, lease
from fairlead.client.reporting_api import report
from fairlead.client.route import Route, route

__all__ = ["Elastic", "GangBroken", "Lease", "Patience", "Route", "elastic", "lease", "report", "route"]
