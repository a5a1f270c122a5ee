"""Observations: one module per decision with feature names, order, formulas and schema hash."""
