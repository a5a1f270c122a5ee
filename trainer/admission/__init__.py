"""Which admission rule fills a cluster best at the risk that was promised: thresholds, fronts, intervals, a report."""
