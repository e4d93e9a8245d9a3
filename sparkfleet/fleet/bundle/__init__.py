"""Report of a fleet for others: facts, raw outputs, plans, events and logs in one file, without secrets and identities."""
