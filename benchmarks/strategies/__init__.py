"""The training loop on two replicas, against a hand-written one."""
