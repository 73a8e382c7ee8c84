"""AutoSP: a compiler that gives unmodified PyTorch training code sequence parallelism."""
