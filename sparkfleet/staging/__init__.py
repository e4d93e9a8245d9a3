"""Brings weights and images to the nodes that need them: from the Hub once per fleet, then node to node over the rails.

    orchestrate     the entry points: `stage(inventory, channels, needs, progress)`, and `survey`
    pin_images      resolves an image's tag once for all nodes: `pin(channels, need, progress)`
    settings        needs (model or image, nodes) and options
    plan            copies: sources, targets, rails, rounds. Pure
    progress        bytes, rates and remaining time of a transfer
    manifest        files of a model or image: sizes, digests, one commit
    file_selection  the files of a Hub repository that an engine needs. Pure
    copy_executor   runs a plan's copies
    fleet           runs the programs on many nodes
    agent_client    runs one program on a node, with its progress
    hub_outline     facts of a checkpoint at the Hub without its weights

Programs that run on a node (`python -m sparkfleet.staging.agent.<name>`, one JSON request on stdin, JSON lines on stdout):

    scan            models and free disk space of the node
    hub_download    downloads from the Hub into this node's cache
    rsync_serve     serves one model or image to one other node
    rsync_fetch     copies from another node
    hash_tree       digests of a directory
    images          docker or podman: look, pull, save, load
    remove          removes one version of a model

Shared by the programs: `agent/transfer` (lock, count, verify, rename), `agent/protocol`, `storage_layout` (the Hub's cache,
or a directory), `hub` (the Hub, by huggingface_hub), `hub_http` (its bounds), `locks`, `parent_death`.
"""
