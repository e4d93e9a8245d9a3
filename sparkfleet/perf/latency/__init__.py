"""Roofline terms, acceptance and fitted factors: TTFT, ITL and tok/s."""
