"""Real environments: a cell's lock becomes a folder with a python in it, checked and read back."""

from matrix.provision.environment import Environment
from matrix.provision.needs import add_probe_needs
from matrix.provision.provisioner import Provisioner
from matrix.provision.standing import here

__all__ = ["Environment", "Provisioner", "add_probe_needs", "here"]
