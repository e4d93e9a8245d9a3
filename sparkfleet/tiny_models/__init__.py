"""A model without a hub: small real checkpoints that are trained on this machine, from text that comes with sparkfleet.

    recipes    what there is: trained from text, or made of another
    cache      where a recipe's checkpoint lies; builds it once, atomically
    corpus     the text files, read and dealt out as training documents
    tokenizer  the byte-level BPE tokenizer and the chat template
    progress   what a build says while it works
    training   trains a model from text
    drafting   trains a draft head on a built model; `heads` says what each kind is, `layers` what they are made of
    vision     puts a built model behind a vision tower
    damage     damages a built model

The last four, and what they import, need torch and transformers: they are imported when there is something to build.
`python -m sparkfleet.tiny_models build tiny` builds one from the command line.
"""
