"""Learns, tunes, evaluates, exports and promotes policies offline."""
