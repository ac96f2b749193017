"""Architecture search on Fashion-MNIST."""
