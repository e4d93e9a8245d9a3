"""The live view of `sparkfleet top`: its terminal application."""
