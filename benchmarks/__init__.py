"""How fast, how large and how late: measured beside others, in turn. See `README.md` for how."""
