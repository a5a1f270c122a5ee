"""The autoscaling simulator: compiled copies, and their plain twin in `reference`, which needs no numba."""
