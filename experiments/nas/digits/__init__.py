"""Architecture search on handwritten digits: 64 architectures, all of known accuracy."""
