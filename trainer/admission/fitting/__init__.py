"""Fitting the population of deployments to a table of virtual machines (admission specification §9)."""
