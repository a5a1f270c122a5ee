"""The agent's own metrics: one catalogue, from which Prometheus, Graphite and the reference page are served."""
