"""Overselling the CPU of a pool of machines: rates per subscriber, a shield per request, alarms, and a way back."""
