"""The loop on two replicas, beside one written by hand."""
