"""What every decision shares: record, store, effect, guards, and the part that it brings to the agent."""
