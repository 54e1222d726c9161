"""Intervals, paired tests, power and recovery: what a number in a table may claim.

The unit is the prompt. Seeds are clustered inside it, so they are averaged before anything is counted.
"""

from mxbench.stats.intervals import Interval, by_prompt, mean_interval
from mxbench.stats.paired import NonInferiority, Paired, holm, noninferior, paired_difference, paired_p_value
from mxbench.stats.power import detectable, needed
from mxbench.stats.ratio import Recovery, recovery

__all__ = [
    "Interval",
    "NonInferiority",
    "Paired",
    "Recovery",
    "by_prompt",
    "detectable",
    "holm",
    "mean_interval",
    "needed",
    "noninferior",
    "paired_difference",
    "paired_p_value",
    "recovery",
]
