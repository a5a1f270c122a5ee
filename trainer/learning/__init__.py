"""Learns from what a fleet's ledger recorded: minutes, traces and a world, the simulator's truth, and the round."""
