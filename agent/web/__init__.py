"""The page: what a running agent does and why, rendered on the server and kept live by server-sent events."""
