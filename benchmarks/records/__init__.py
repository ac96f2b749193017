"""Known numbers on real data, by us and by what users would pick instead."""
