"""Formulas of deferral: which work waits for a cheaper or less busy hour."""
