"""Formulas of placement: on which machine a request runs."""
