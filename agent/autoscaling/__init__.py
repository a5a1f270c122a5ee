"""Autoscaling: the minute loop that measures a fleet, decides its sizes and acts on them."""
