"""The autoscaling simulator: compiled copies, and their plain twin in `twin`, which needs no numba."""
