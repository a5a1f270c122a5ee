"""Autoscaling maths: queue rule, target tracking and threshold."""
