"""The command line: a module for each verb, or for verbs that belong together."""
