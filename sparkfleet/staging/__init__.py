"""Brings weights and images to the nodes that need them: from the Hub once per fleet, then node to node over the rails.

    stage      what others call: `stage(inventory, channels, needs, progress)`, and `survey`
    tags       which image a tag stands for, once for all nodes: `pin(channels, need, progress)`
    settings   what is needed where, and how
    plan       who sends what to whom, over which rails, in which round. Pure
    progress   what staging says while it works: bytes, rates, time left
    manifest   what a thing consists of: files, sizes, digests, one commit
    select     which files of a Hub repository an engine needs. Pure
    copying    carries out a plan's copies
    fleet      asks the programs on the nodes
    call       how one is run, and what it says while it works

Programs that run on a node (`python -m sparkfleet.staging.<name>`, one JSON request on stdin, JSON lines on stdout):

    look       what is here, and how much room
    pull       from the Hub into this node's cache
    serve      lets one other node in, to copy one thing
    fetch      copies from another node
    seal       the digests of a directory
    images     docker or podman: look, pull, save, load
    remove     takes one version of a model away

and what they share: `arrive` (lock, count, check, rename), `place` (the Hub's cache, or a directory), `hub` (the Hub, by
huggingface_hub), `hub_http` (its bounds), `locks`, `lines`, `tether`.
"""
