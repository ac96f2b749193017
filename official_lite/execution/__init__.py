"""The ways in which steps are executed: graph, XLA, parameter servers, and the choice of one."""
