"""The admission simulator: a cluster, the deployments that ask to come in, and rules that say which may."""

from simulator.admission.arrivals import Run, draw_run
from simulator.admission.play import Outcome, play
from simulator.admission.presets import PRESETS, Cluster, cluster_of
from simulator.admission.rule import Rule, rule_of

__all__ = ["PRESETS", "Cluster", "Outcome", "Rule", "Run", "cluster_of", "draw_run", "play", "rule_of"]
