"""The model of Guo et al. on clicks: `recommendation/deepfm`."""
