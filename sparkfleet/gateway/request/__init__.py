"""Requirements of a request: capabilities, media, and the beginning of its prompt. Pure."""
