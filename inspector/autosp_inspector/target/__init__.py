"""Targets: what a command works on, a model or a trace, and how a model is loaded.

``specification`` recognises a target without importing torch; ``load`` builds the model
under fake tensors, so that nothing is allocated.
"""
