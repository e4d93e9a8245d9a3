"""A model without a hub: small real checkpoints that are trained on this machine, from text that comes with sparkfleet.

    recipes    what there is: name, architecture, training budget, text
    cache      where a recipe's checkpoint lies; builds it once, atomically
    corpus     the text files, read and dealt out as training documents
    tokenizer  the byte-level BPE tokenizer and the chat template
    training   the only module that imports torch and transformers, and only when there is something to build
    progress   what a build says while it works

`python -m sparkfleet.builtin build tiny` builds one from the command line.
"""
