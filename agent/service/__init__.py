"""The process: daemon, assembly, leader, schedule, logs, and what it does beside the loop."""
