"""Alarms: what a person should hear of now, told once, again while it lasts, and when it is over."""
