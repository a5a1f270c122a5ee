"""The durable record: journal of decisions, intents, outcomes and events, and the loop's state, in one database."""
