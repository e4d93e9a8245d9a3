"""How ranks are run on a node: `base` says what a runtime is, the modules beside it are the kinds."""
