"""Simulates deferral: which work waits for a cheaper or less busy hour."""
