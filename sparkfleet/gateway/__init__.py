"""The OpenAI and Anthropic endpoint: keys, limits, routing by model, raw streaming."""
