"""What is looked for in a finished compilation; :mod:`autosp.findings` runs all of it."""
