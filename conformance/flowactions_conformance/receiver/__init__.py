"""A webhook receiver on loopback: it verifies what arrives and shows it."""

from flowactions_conformance.receiver.app import Arrival, Receiver
from flowactions_conformance.receiver.verify import verify

__all__ = ["Arrival", "Receiver", "verify"]
