"""Model files of learned policies: file, card, shelf and the files that come with the agent."""
