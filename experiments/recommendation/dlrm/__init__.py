"""The model of Naumov et al. on clicks: `recommendation/dlrm`."""
