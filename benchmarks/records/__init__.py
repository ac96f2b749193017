"""Known numbers on real data: experiments and what users would run instead, in turn."""
