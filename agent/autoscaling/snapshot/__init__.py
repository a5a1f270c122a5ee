"""The snapshot: one minute of readings, folded to counts, ratios and observations of a fleet."""
