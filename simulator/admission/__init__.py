"""The admission simulator: a cluster, its arriving deployments, and the rules that admit them."""

from simulator.admission.arrivals import PRESETS, Cluster, Run, cluster_of, draw_run
from simulator.admission.play import Outcome, play
from simulator.admission.rule import Rule, rule_of

__all__ = ["PRESETS", "Cluster", "Outcome", "Rule", "Run", "cluster_of", "draw_run", "play", "rule_of"]
