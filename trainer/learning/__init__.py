"""Learns from what a fleet's ledger recorded: its minutes, traces and world, the simulator's truth, and the round of learning."""
