"""Policies of the simulator, each made from a text by `registry.policy_of`; `autoscaling.episodes` runs them."""
