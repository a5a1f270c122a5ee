"""The model files that come with the agent, and their index."""
