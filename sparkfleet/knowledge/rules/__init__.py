"""Known combinations that break, corrupt, slow down or limit, and the language of their conditions."""
