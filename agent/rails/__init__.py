"""Guard rails: pure functions that pass, shrink, veto or replace a proposal, in a fixed order, each saying why."""
