"""Runs the GPU pack. Needs Python 3.10 or newer and nothing else: it runs where there is no Rust and no network."""
