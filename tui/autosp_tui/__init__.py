"""The terminal user interface of AutoSP Inspector."""
