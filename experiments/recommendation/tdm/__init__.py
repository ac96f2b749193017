"""The tree-based deep match of Zhu et al.: `recommendation/tdm`."""
