"""Small real checkpoints that are trained on this machine, from text that is packaged with sparkfleet; no Hub needed.

    recipes    the models: trained from text, or derived from another
    cache      the path of a recipe's checkpoint; builds it once, atomically
    corpus     the text files, read as training documents
    tokenizer  the byte-level BPE tokenizer and the chat template
    progress   progress of a build
    training   trains a model from text
    drafting   trains a draft head on a built model; `heads` defines each kind, `layers` their parts
    vision     puts a built model behind a vision tower
    damage     damages a built model

The last four, and their imports, need torch and transformers: they are imported only for a build.
`python -m sparkfleet.tiny_models build tiny` builds one from the command line.
"""
