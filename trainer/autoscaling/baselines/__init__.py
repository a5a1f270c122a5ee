"""Baselines made as strong as they get: tuned rules, the best constant fleet, and a clairvoyant bound and plan."""
