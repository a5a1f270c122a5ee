"""Alarms: sent when they begin, again while they last, and when they end."""
