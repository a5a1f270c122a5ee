"""Decides deferral: which jobs with a window start now in the cores that other work leaves."""
