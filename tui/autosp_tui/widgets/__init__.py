"""The panes that views are made of."""
