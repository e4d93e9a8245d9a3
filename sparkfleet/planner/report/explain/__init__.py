"""Plans, refusals and changes as lines of text, most of them under 100 columns. Pure: no terminal."""
