"""Autoscaling: recurrent PPO, its tasks and baselines, and how policies are evaluated."""
