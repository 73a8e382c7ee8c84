"""The command line ``autosp-inspect``: one file per command, one table that lists them."""
