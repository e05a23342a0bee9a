"""Compute, Secret and Configuration on one machine.

Directories, two kinds of small documents and a unix socket take the place of a cluster: an Agent's files lie in one directory tree that
sandboxd may mount, the Agent Gateway reads route documents from another, and secret values are encrypted files. Confinement is not done
here: the composed SandboxDriver does it.
"""
