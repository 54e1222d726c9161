"""Which method where: rules over layers, steps and experts; the first match wins."""

from mxbench.attention.site import Site
from mxbench.policy.resolved import idle, resolved
from mxbench.policy.schedule import Rule, Schedule, Use, as_schedule
from mxbench.policy.selector import Selector

__all__ = ["Rule", "Schedule", "Selector", "Site", "Use", "as_schedule", "idle", "resolved"]
